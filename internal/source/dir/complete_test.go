package dir_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
)

// template is a pod template in flow style, with a label.
func template(app string) string {
	return fmt.Sprintf("{metadata: {labels: {app: %s}}, spec: {containers: [{name: app, image: app}]}}", app)
}

func workload(apiVersion, kind, name, spec string) string {
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: shop}\nspec: %s\n", apiVersion, kind, name, spec)
}

func deployment(name string, replicas int) string {
	return workload("apps/v1", "Deployment", name, fmt.Sprintf("{replicas: %d, selector: {matchLabels: {app: %s}}, template: %s}", replicas, name, template(name)))
}

func service(name, spec string) string { return workload("v1", "Service", name, spec) }

func pod(name, labels, rest string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, labels: {%s}}\n%s\n", name, labels, rest)
}

func TestPods(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
		problems   []string
	}{
		{"Deployment", deployment("a", 2) + workload("apps/v1", "Deployment", "b", "{template: "+template("b")+"}") + deployment("none", 0),
			[]string{"a-0", "a-1", "b-0"}, nil},
		{"StatefulSet", workload("apps/v1", "StatefulSet", "db", "{replicas: 2, serviceName: db, ordinals: {start: 5}, template: "+template("db")+"}"),
			[]string{"db-5", "db-6"}, nil},
		{"DaemonSet", workload("apps/v1", "DaemonSet", "log", "{template: "+template("log")+"}"), []string{"log-0"}, nil},
		{"ReplicaSet", workload("apps/v1", "ReplicaSet", "rs", "{replicas: 1, template: "+template("rs")+"}"), []string{"rs-0"}, nil},
		{"Job", workload("batch/v1", "Job", "job", "{parallelism: 2, template: "+template("job")+"}") +
			workload("batch/v1", "Job", "asleep", "{suspend: true, template: "+template("asleep")+"}") +
			workload("batch/v1", "Job", "over", "{template: "+template("over")+"}\nstatus: {conditions: [{type: Complete, status: 'True'}]}"),
			[]string{"job-0", "job-1"}, nil},
		{"CronJob", workload("batch/v1", "CronJob", "cron", "{jobTemplate: {spec: {template: "+template("cron")+"}}}") +
			workload("batch/v1", "CronJob", "asleep", "{suspend: true, jobTemplate: {spec: {template: "+template("asleep")+"}}}"),
			[]string{"cron-0"}, nil},
		{"pods that are there", deployment("a", 2) + pod("other", "app: a", "") + deployment("b", 1) + workload("batch/v1", "Job", "job", "{template: "+template("job")+"}") +
			pod("of-job", "batch.kubernetes.io/job-name: job", ""),
			[]string{"b-0", "of-job", "other"}, nil},
		{"what another one controls", deployment("a", 1) + strings.Replace(workload("apps/v1", "ReplicaSet", "a-5d", "{replicas: 3, template: "+template("a")+"}"),
			"namespace: shop", "namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: a, uid: u, controller: true}]", 1),
			[]string{"a-0"}, nil},
		{"a controller that is not there", strings.Replace(workload("apps/v1", "ReplicaSet", "a-5d", "{replicas: 2, template: "+template("a")+"}"),
			"namespace: shop", "namespace: shop, ownerReferences: [{apiVersion: argoproj.io/v1, kind: Rollout, name: a, uid: u, controller: true}]", 1),
			[]string{"a-5d-0", "a-5d-1"}, nil},
		{"a run of a CronJob", workload("batch/v1", "CronJob", "cron", "{jobTemplate: {spec: {template: "+template("cron")+"}}}") +
			strings.Replace(workload("batch/v1", "Job", "cron-1", "{template: "+template("cron")+"}"),
				"namespace: shop", "namespace: shop, ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: cron, uid: u, controller: true}]", 1) +
			strings.Replace(pod("cron-1-x", "a: b", ""), "namespace: shop", "namespace: shop, ownerReferences: [{apiVersion: batch/v1, kind: Job, name: cron-1, uid: u, controller: true}]", 1),
			[]string{"cron-1-x"}, nil},
		{"one name, two kinds", deployment("a", 1) + workload("batch/v1", "CronJob", "a", "{jobTemplate: {spec: {template: "+template("c")+"}}}"),
			[]string{"a-0", "a-cronjob-0"}, nil},
		{"names that are taken", deployment("a", 1) + pod("a-0", "c: d", "") + pod("a-deployment-0", "c: d", ""),
			[]string{"a-0", "a-deployment-0"},
			[]string{"Deployment shop/a: Duplicate: DIR/all.yaml:2: its pods are not made, because other pods have the same names, such as a-deployment-0"}},
		{"negative", deployment("a", -5), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := loadText(t, options(), tt.text)
			var names []string
			for _, name := range r.names("Pod") {
				names = append(names, strings.TrimPrefix(name, "shop/"))
			}
			same(t, "pods", tt.want, names)
			r.wantProblems(t, tt.problems...)
		})
	}
}

func TestPodsAreBounded(t *testing.T) {
	r := loadText(t, options(), deployment("many", 2_000_000_000))
	if n := len(r.names("Pod")); n != 100 {
		t.Errorf("%d pods", n)
	}
	r.wantProblems(t, "Deployment shop/many: TooMany: DIR/all.yaml:2: only 100 of its 2000000000 pods are made, the maximum for one object")

	var b strings.Builder
	for i := range 502 {
		b.WriteString(deployment(fmt.Sprintf("d%03d", i), 100))
	}
	r = loadText(t, options(), b.String())
	if n := len(r.names("Pod")); n != 50_000 {
		t.Errorf("%d pods", n)
	}
	if len(r.problems) != 2 || !strings.Contains(r.problems[0], "Deployment shop/d500: TooMany") || !strings.Contains(r.problems[0], "there are already 50000") {
		t.Errorf("problems %q", r.problems)
	}
	// Each pod has its own address.
	seen := make(map[netip.Addr]bool)
	for _, addresses := range addressesOf(r) {
		for _, a := range addresses {
			seen[a] = true
		}
	}
	if len(seen) != 50_000 {
		t.Errorf("%d addresses", len(seen))
	}
}

func TestPodContent(t *testing.T) {
	r := loadText(t, options(), shop)
	got := find[*fact.Workload](t, r, "Pod", "shop", "cart-1")
	same(t, "service account", "carts", got.ServiceAccount)
	same(t, "ports", []fact.WorkloadPort{{Name: "web", Number: 8080}}, got.Ports)
	// They are always the same, so that translations can be compared.
	same(t, "UID", "8c5887af-4480-8dac-b7d1-588f018c4da1", got.UID)
	same(t, "addresses", []netip.Addr{netip.MustParseAddr("198.18.38.181")}, got.Addresses)
}

func TestSidecarClass(t *testing.T) {
	opts := options()
	var asked []string
	opts.Sidecar = func(pod *corev1.Pod, namespace *corev1.Namespace) dir.Sidecar {
		asked = append(asked, pod.Namespace+"/"+pod.Name+" in "+namespace.Name)
		if namespace.Labels["openservicemesh.io/monitored-by"] != "osm" || pod.Annotations["skip"] != "" {
			return dir.Sidecar{}
		}
		return dir.Sidecar{Class: "pipy"}
	}
	r := loadText(t, opts, deployment("many", 3)+
		pod("new", "a: b", "")+
		"---\n{apiVersion: v1, kind: Pod, metadata: {name: opted-out, namespace: shop, annotations: {skip: 'yes'}}}\n"+
		"---\n{apiVersion: v1, kind: Pod, metadata: {name: injected, namespace: shop, annotations: {"+statusAnnotation+": envoy}}}\n"+
		"---\n{apiVersion: v1, kind: Pod, metadata: {name: running, namespace: shop, uid: '1'}}\n"+
		"---\n{apiVersion: v1, kind: Namespace, metadata: {name: outside}}\n"+
		"---\n{apiVersion: v1, kind: Pod, metadata: {name: foreign, namespace: outside}}\n")
	classes := make(map[string]string)
	for _, stated := range r.facts {
		if w, ok := stated.Content.(*fact.Workload); ok {
			classes[w.Name.String()] = w.Class
		}
	}
	same(t, "classes", map[string]string{
		"shop/many-0": "pipy", "shop/many-1": "pipy", "shop/many-2": "pipy", "shop/new": "pipy",
		"shop/opted-out": "", "shop/injected": "envoy", "shop/running": "", "outside/foreign": "",
	}, classes)
	slices.Sort(asked)
	same(t, "asked", []string{"outside/foreign in outside", "shop/many-0 in shop", "shop/new in shop", "shop/opted-out in shop"}, asked)
}

// addressesOf returns the addresses of all workloads and services.
func addressesOf(r result) map[string][]netip.Addr {
	all := make(map[string][]netip.Addr)
	for _, stated := range r.facts {
		switch c := stated.Content.(type) {
		case *fact.Workload:
			all[stated.Object.String()] = c.Addresses
		case *fact.Service:
			all[stated.Object.String()] = c.Addresses
		}
	}
	return all
}

func TestAddresses(t *testing.T) {
	text := deployment("plain", 1) + deployment("both", 1) + deployment("six", 1) + deployment("alone", 1) +
		service("plain", "{selector: {app: plain}, ports: [{port: 80}]}") +
		service("both", "{selector: {app: both}, ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}") +
		service("six", "{selector: {app: six}, ipFamilies: [IPv6], ports: [{port: 80}]}") +
		service("given", "{clusterIP: 10.1.2.3, ports: [{port: 80}]}") +
		service("headless", "{clusterIP: None, ports: [{port: 80}]}") +
		service("elsewhere", "{type: ExternalName, externalName: example.com}") +
		pod("given", "a: b", "status: {podIPs: [{ip: 10.9.9.9}]}") +
		pod("over", "a: b", "status: {phase: Succeeded}")
	got := addressesOf(loadText(t, options(), text))
	ranges := map[string][]string{
		"Service shop/plain": {"198.19.0.0/16"}, "Service shop/both": {"198.19.0.0/16", "2001:db8:1::/48"}, "Service shop/six": {"2001:db8:1::/48"},
		"Service shop/given": {"10.1.2.3/32"}, "Service shop/headless": nil, "Service shop/elsewhere": nil,
		"Pod shop/plain-0": {"198.18.0.0/16"}, "Pod shop/both-0": {"198.18.0.0/16", "2001:db8::/48"}, "Pod shop/six-0": {"2001:db8::/48"},
		"Pod shop/alone-0": {"198.18.0.0/16"}, "Pod shop/given": {"10.9.9.9/32"}, "Pod shop/over": nil,
	}
	for name, prefixes := range ranges {
		addresses := got[name]
		if len(addresses) != len(prefixes) {
			t.Errorf("%s: addresses %v, want one of each of %v", name, addresses, prefixes)
			continue
		}
		for i, prefix := range prefixes {
			if !netip.MustParsePrefix(prefix).Contains(addresses[i]) {
				t.Errorf("%s: address %v is not of %v", name, addresses[i], prefix)
			}
		}
	}

	// Additional objects do not change the addresses of others.
	more := addressesOf(loadText(t, options(), text+deployment("a-first", 3)+deployment("z-last", 3)+
		service("a-first", "{ports: [{port: 80}]}")))
	for name, addresses := range got {
		same(t, name+" beside others", addresses, more[name])
	}

	// An address that is in use is not assigned again.
	taken := got["Pod shop/alone-0"][0]
	collided := addressesOf(loadText(t, options(), text+pod("thief", "a: b", "status: {podIP: "+taken.String()+"}")))
	same(t, "the next address", []netip.Addr{taken.Next()}, collided["Pod shop/alone-0"])
}

// slicesOf describes the EndpointSlices of a service.
func slicesOf(r result, service string) []string {
	var all []string
	for _, stated := range r.facts {
		s, ok := stated.Content.(*fact.EndpointSlice)
		if !ok || s.Service != service {
			continue
		}
		var b strings.Builder
		for _, p := range s.Ports {
			fmt.Fprintf(&b, "%s=%d ", p.Name, p.Port)
		}
		for _, e := range s.Endpoints {
			family := "IPv4"
			if e.Addresses[0].Is6() {
				family = "IPv6"
			}
			fmt.Fprintf(&b, "[%s %s", e.Workload, family)
			for _, f := range []struct {
				is   bool
				name string
			}{{e.Ready, "ready"}, {e.Serving, "serving"}, {e.Terminating, "terminating"}, {e.Hostname != "", "host:" + e.Hostname}, {e.Zone != "", "zone:" + e.Zone}} {
				if f.is {
					b.WriteString(" " + f.name)
				}
			}
			b.WriteString("]")
		}
		all = append(all, b.String())
	}
	slices.Sort(all)
	return all
}

func TestEndpoints(t *testing.T) {
	const web = "spec: {containers: [{name: c, ports: [{name: web, containerPort: %d}]}]}\n"
	text := pod("a", "app: x, topology.kubernetes.io/zone: z1", fmt.Sprintf(web, 8080)) +
		pod("b", "app: x", fmt.Sprintf(web, 8080)+"status: {conditions: [{type: Ready, status: 'False'}]}") +
		pod("c", "app: x", fmt.Sprintf(web, 9090)) +
		pod("nameless", "app: x", "") +
		pod("native", "app: x", "spec: {initContainers: [{name: i, ports: [{name: web, containerPort: 1}]}, {name: s, restartPolicy: Always, ports: [{name: web, containerPort: 7070}]}]}") +
		pod("over", "app: x", "status: {phase: Failed, podIP: 10.0.0.9}") +
		pod("other", "app: w", "") +
		strings.Replace(pod("leaving", "app: z", ""), "namespace: shop", "namespace: shop, deletionTimestamp: '2026-01-01T00:00:00Z'", 1) +
		workload("apps/v1", "StatefulSet", "db", "{serviceName: db, replicas: 2, template: "+template("db")+"}") +
		workload("batch/v1", "Job", "job", "{template: "+template("job")+"}") +
		service("named", "{selector: {app: x}, ports: [{name: http, port: 80, targetPort: web}, {name: admin, port: 81, targetPort: 8081}, {name: same, port: 82}]}") +
		service("dual", "{selector: {app: w}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}") +
		service("leaving", "{selector: {app: z}, ports: [{port: 80}]}") +
		service("unready", "{selector: {app: x}, publishNotReadyAddresses: true, ports: [{port: 80}]}") +
		service("db", "{clusterIP: None, selector: {app: db}, ports: [{port: 3306, appProtocol: mysql}]}") +
		service("db-0", "{selector: {statefulset.kubernetes.io/pod-name: db-0}, ports: [{port: 3306, appProtocol: mysql}]}") +
		service("job", "{selector: {batch.kubernetes.io/job-name: job}, ports: [{port: 80}]}") +
		service("unselective", "{ports: [{port: 80}]}") +
		service("elsewhere", "{type: ExternalName, externalName: example.com, selector: {app: x}}") +
		service("sliced", "{selector: {app: x}, ports: [{port: 80}]}") +
		"---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: own, namespace: shop, labels: {kubernetes.io/service-name: sliced}}, addressType: IPv4, ports: [{port: 1}], endpoints: [{addresses: [10.0.0.1]}]}\n"
	r := loadText(t, options(), text)
	r.wantProblems(t)
	for _, tt := range []struct {
		service string
		want    []string
	}{
		{"named", []string{
			"admin=8081 http=7070 same=82 [native IPv4 ready serving]",
			"admin=8081 http=8080 same=82 [a IPv4 ready serving zone:z1][b IPv4]",
			"admin=8081 http=9090 same=82 [c IPv4 ready serving]",
			"admin=8081 same=82 [nameless IPv4 ready serving]",
		}},
		{"dual", []string{"=80 [other IPv4 ready serving]", "=80 [other IPv6 ready serving]"}},
		{"leaving", []string{"=80 [leaving IPv4 serving terminating]"}},
		{"db", []string{"=3306 [db-0 IPv4 ready serving host:db-0][db-1 IPv4 ready serving host:db-1]"}},
		{"db-0", []string{"=3306 [db-0 IPv4 ready serving]"}},
		{"job", []string{"=80 [job-0 IPv4 ready serving]"}},
		{"unselective", nil},
		{"elsewhere", nil},
		{"sliced", []string{"=1 [ IPv4 ready serving]"}},
	} {
		var got []string
		for _, s := range slicesOf(r, tt.service) {
			// Endpoints are in the order of their addresses, which are arbitrary.
			head, endpoints, _ := strings.Cut(s, "[")
			all := strings.Split(strings.TrimSuffix(endpoints, "]"), "][")
			slices.Sort(all)
			got = append(got, head+"["+strings.Join(all, "][")+"]")
		}
		same(t, tt.service, tt.want, got)
	}
	for _, s := range slicesOf(r, "unready") {
		if !strings.Contains(s, "[b IPv4 ready serving]") {
			t.Errorf("a pod that is not ready is not published: %s", s)
		}
	}
}
