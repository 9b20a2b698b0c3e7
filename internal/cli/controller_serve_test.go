package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestControllerServes runs controllers with exactly the chart's rights, which serve the
// proxies of a cluster. It is one test, since it starts one API server.
func TestControllerServes(t *testing.T) {
	c := newControllerTest(t)
	c.allow(t, "")
	c.createNamespace(t, "shop", map[string]string{"openservicemesh.io/monitored-by": "osm"})
	c.createNamespace(t, "elsewhere", nil)
	config := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "osm-mesh-config"}}
	config.Spec.Traffic.EnablePermissiveTrafficPolicyMode = new(true)
	config.Spec.Observability.EnableDebugServer = true
	c.create(t, config)

	first := c.startReplica(t)
	second := c.startReplica(t)
	t.Run("certificates", func(t *testing.T) { c.testCertificates(t, first) })
	t.Run("keys of tokens", c.testKeys)
	// The proxies stay connected for the parts that follow.
	parent := t
	t.Run("configuration", func(t *testing.T) { c.testConfiguration(t, parent, first, second) })
	t.Run("a pod that is not known yet", c.testFindPod)
	t.Run("forwarded", func(t *testing.T) { c.testForward(t, first, second) })
	t.Run("a proxy that fails", func(t *testing.T) { c.testFailing(t, first, second) })
	t.Run("leader", func(t *testing.T) { c.testLeader(t, first, second) })
}

// replica is one of several controllers.
type replica struct {
	*running
	host string
}

func (c *controllerTest) startReplica(t *testing.T) *replica {
	t.Helper()
	host := ownAddress()
	address := net.JoinHostPort(host, "9091")
	f := c.flags(address)
	f.BindAddress, f.IdentityListen, f.DebugListen, f.ProxyListen = host, ":15129", ":9092", ":9093"
	r := &replica{begin(t, address, f), f.BindAddress}
	eventually(t, "the controller is ready", func() error {
		_, err := r.get("/health/ready")
		return err
	})
	return r
}

// peerOf returns an agent of a pod, with a token from the API server.
func (c *controllerTest) peerOf(t *testing.T, r *replica, pod *corev1.Pod, audience string) *peer {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{audience}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	if err := c.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	p := &peer{
		host: r.host, token: request.Status.Token, uid: string(pod.UID),
		identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: pod.Namespace, ServiceAccount: pod.Spec.ServiceAccountName},
	}
	eventually(t, "the trust bundle", func() error {
		var bundle corev1.ConfigMap
		err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "outrigger-ca"}, &bundle)
		p.bundle = []byte(bundle.Data["ca.crt"])
		return err
	})
	return p
}

// injectedPod creates a pod as the injector would. No kubelet runs it.
func (c *controllerTest) injectedPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	err := c.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	return c.createPod(t, namespace, name, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"openservicemesh.io/sidecar-status": `{"version": 1, "class": "envoy"}`}
		p.Spec.ServiceAccountName = name
		p.Labels = map[string]string{"app": name}
	})
}

func (c *controllerTest) testCertificates(t *testing.T, r *replica) {
	desk := c.injectedPod(t, "shop", "desk")
	c.peerOf(t, r, desk, identity.Audience).sign(t)

	outside := c.injectedPod(t, "elsewhere", "outside")
	gone := c.injectedPod(t, "shop", "gone")
	late := c.peerOf(t, r, gone, identity.Audience)
	if err := c.Delete(t.Context(), gone, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	other := c.peerOf(t, r, desk, identity.Audience)
	other.identity.ServiceAccount = "cart"
	for name, tt := range map[string]struct {
		peer *peer
		want codes.Code
	}{
		"another namespace":       {c.peerOf(t, r, outside, identity.Audience), codes.PermissionDenied},
		"another audience":        {c.peerOf(t, r, desk, "vault"), codes.Unauthenticated},
		"a pod that is gone":      {late, codes.Unauthenticated},
		"another service account": {other, codes.InvalidArgument},
	} {
		if err := tt.peer.trySign(t); status.Code(err) != tt.want {
			t.Errorf("%s: error %v, want the code %s", name, err, tt.want)
		}
	}
}

// testConfiguration connects proxies to both replicas, of which the first is the leader. A
// rejection at either replica becomes an Event.
func (c *controllerTest) testConfiguration(t, parent *testing.T, replicas ...*replica) {
	var streams []*stream
	for i, name := range []string{"one", "two", "three"} {
		pod := c.injectedPod(t, "shop", name)
		p := c.peerOf(t, replicas[min(i, 1)], pod, identity.Audience)
		p.sign(t)
		s := p.connect(parent)
		s.ack(t, s.ask(t, clusterType))
		s.ack(t, s.ask(t, listenerType))
		streams = append(streams, s)
	}
	c.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	})
	for i, s := range streams {
		a := s.next(t, clusterType)
		switch {
		case !slices.Contains(a.names, "shop/till:80"):
			t.Fatalf("proxy %d is sent %q", i, a.names)
		case i == 1:
			s.ack(t, a)
			go s.takeAll()
		default:
			s.nack(t, a, "no such thing")
		}
	}
	const event = "Warning Rejected Service/till the envoy proxy of pod shop/%s rejects Cluster shop/till:80; the previous configuration stays in use: no such thing"
	eventually(t, "the Events", func() error {
		var got []string
		for _, e := range c.events(t, "shop") {
			if strings.Contains(e, "Rejected") {
				got = append(got, e)
			}
		}
		return same([]string{fmt.Sprintf(event, "one"), fmt.Sprintf(event, "three")}, got)
	})
	eventually(t, "the metrics", func() error {
		text, err := replicas[0].get("/metrics")
		for _, line := range []string{
			`outrigger_proxies_connected{class="envoy"} 1`, `outrigger_proxies_rejecting{class="envoy"} 1`,
			`outrigger_problems{kind="Service",name="till",namespace="shop",reason="Rejected"} 1`,
		} {
			if err == nil && !strings.Contains(text, line+"\n") {
				err = fmt.Errorf("there is no %s", line)
			}
		}
		return err
	})
}

// testFindPod looks up pods that no informer has reported.
func (c *controllerTest) testFindPod(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	s, err := kube.New(config, kube.Options{Namespace: controlPlane, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pod := c.injectedPod(t, "shop", "found")
	c.createPod(t, "shop", "another", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "found" })
	for _, tt := range []struct {
		namespace, account string
		want               bool
	}{{"shop", "found", true}, {"shop", "desk", false}, {"elsewhere", "found", false}} {
		found, err := s.FindPod(t.Context(), tt.namespace, tt.account, pod.UID)
		if err != nil || (found != nil) != tt.want || tt.want && found.Name != pod.Name {
			t.Errorf("%s/%s: got %v and the error %v", tt.namespace, tt.account, found, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.FindPod(ctx, "shop", "found", pod.UID); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: error %v", err)
	}
}

// testLeader takes the lease from the leader. Both replicas keep serving, and the new leader
// writes.
func (c *controllerTest) testLeader(t *testing.T, replicas ...*replica) {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: controlPlane, Name: "outrigger-controller"}
	leases, err := client.New(c.server.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	hold := func(holder string) {
		t.Helper()
		eventually(t, "the lease is "+holder+"'s", func() error {
			if err := leases.Get(t.Context(), key, lease); err != nil {
				return err
			}
			lease.Spec.HolderIdentity = &holder
			lease.Spec.LeaseDurationSeconds = new(int32(3600))
			lease.Spec.RenewTime = new(metav1.NowMicro())
			return leases.Update(t.Context(), lease)
		})
	}
	hold("thief")
	eventually(t, "the leader notices", func() error {
		for _, r := range replicas {
			if strings.Contains(r.log.String(), "this replica does not write any more") {
				return nil
			}
		}
		return errors.New("nobody says so")
	})
	for i, r := range replicas {
		if _, err := r.get("/health/ready"); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
	eventually(t, "nobody counts", func() error {
		for _, r := range replicas {
			if got := r.metrics(); got != "" {
				return fmt.Errorf("got %q", got)
			}
		}
		return nil
	})
	// The next leader reports this Problem.
	c.apply(t, decode(t, `
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: late, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: nobody, namespace: shop}
  sources: [{kind: ServiceAccount, name: desk, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: none}]
`)...)
	hold("")
	eventually(t, "an Event", func() error {
		if got := c.events(t, "shop"); !slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "TrafficTarget/late") }) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	eventually(t, "one replica counts", func() error {
		counting := 0
		for _, r := range replicas {
			if strings.Contains(r.metrics(), `name="late"`) {
				counting++
			}
		}
		return same(1, counting)
	})
}

// userWith returns a kubeconfig of a new user who has these rights in the whole cluster.
func (c *controllerTest) userWith(t *testing.T, user string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	rights, err := client.New(c.server.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		},
	} {
		if err := rights.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	text, err := c.server.Kubeconfig(user)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// testForward lists the proxies of both replicas through the API server and a fake kubelet, with
// the rights of the chart's Role for viewers.
func (c *controllerTest) testForward(t *testing.T, replicas ...*replica) {
	kubelet := startKubelet(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	c.create(t, node)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.port)
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for i, r := range replicas {
		pod := c.createPod(t, controlPlane, fmt.Sprintf("outrigger-controller-%d", i), func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "outrigger-controller", "app.kubernetes.io/name": "outrigger"}
			p.Spec.NodeName = "node"
		})
		pod.Status.Phase = corev1.PodRunning
		if err := c.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		kubelet.pods.Store(pod.Name, r.host)
	}
	kubeconfig := c.userWith(t, "operator", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"create"}})
	portForwarder := kubeconfig
	viewer := c.userWith(t, "viewer", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}})
	kubeconfig = viewer
	bind := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "viewer"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "viewer"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "outrigger-viewer"},
	}
	rights, err := client.New(c.server.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := rights.Create(t.Context(), bind); err != nil {
		t.Fatal(err)
	}
	list := func() string {
		var rows []string
		for line := range strings.Lines(runCommand(t, "proxy", "list", "--kubeconfig", kubeconfig, "-o", "wide")) {
			if f := strings.Fields(line); f[0] != "NAMESPACE" {
				rows = append(rows, strings.Join([]string{f[0], f[1], f[2], f[3], f[len(f)-1]}, " "))
			}
		}
		return strings.Join(rows, ", ")
	}
	eventually(t, "proxies", func() error {
		return same("shop one envoy Rejected outrigger-controller-0, shop three envoy Rejected outrigger-controller-1, shop two envoy Current outrigger-controller-1", list())
	})
	text := runCommand(t, "proxy", "get", "shop/two", "--kubeconfig", kubeconfig)
	if !strings.Contains(text, "to outrigger-controller-1\n") || !strings.Contains(text, "State:      Current") {
		t.Errorf("'proxy get' asks the wrong one:\n%s", text)
	}

	// The controllers read the proxies of all pods. These pods have no proxy that answers.
	stdout, stderr, err := run(t.Context(), "stat", "po", "-A", "--window", "1ms", "--kubeconfig", kubeconfig)
	for _, pod := range []string{"one", "two", "three"} {
		if !regexp.MustCompile(`(?m)^shop +`+pod+` +0/1 `).MatchString(stdout) || !strings.Contains(stderr, "shop/"+pod) {
			t.Errorf("'stat' does not say that shop/%s was not read: error %v\n%s%s", pod, err, stdout, stderr)
		}
	}

	// The right to forward ports is not enough.
	for _, args := range [][]string{{"proxy", "list"}, {"stat", "po"}, {"edges"}, {"top"}} {
		if err := tryCommand(t, append(args, "--kubeconfig", portForwarder)...); err == nil || !strings.Contains(err.Error(), "Role outrigger-viewer") {
			t.Errorf("somebody without the right runs %v: error %v", args, err)
		}
	}
	for name, tt := range map[string]struct{ token, want string }{
		"no token":                {"", "401"},
		"a token of another kind": {"x", "401"},
		"another audience":        {c.tokenOf(t, "outrigger-viewer", "https://kubernetes.default.svc"), "401"},
		"another service account": {c.tokenOf(t, "outrigger-controller", debug.Audience), "403"},
	} {
		for _, path := range []string{debug.ProxyPath, debug.TrafficPath} {
			if _, err := getPage(t.Context(), replicas[0].host+":9093", path, tt.token); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s with %s: error %v, want %s", path, name, err, tt.want)
			}
		}
	}
	if _, err := getPage(t.Context(), replicas[0].host+":9093", debug.ConfigPath, c.tokenOf(t, "outrigger-viewer", debug.Audience)); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("another page than that of proxies is there: %v", err)
	}

	// The right to read pods is enough to query versions.
	kubeconfig = portForwarder
	var found versions
	if err := json.Unmarshal([]byte(runCommand(t, "version", "--kubeconfig", kubeconfig, "-o", "json")), &found); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range found.ControlPlane {
		names = append(names, pod.Pod+" "+pod.Version)
	}
	if want := "outrigger-controller-0 0.2.0, outrigger-controller-1 0.2.0"; strings.Join(names, ", ") != want {
		t.Errorf("versions of the control plane: %s, want %s", names, want)
	}

	// If one controller does not answer, the proxies of the others are listed.
	kubeconfig = viewer
	kubelet.pods.Delete("outrigger-controller-1")
	cmd, out := NewRootCommand(), &syncBuffer{}
	cmd.SetArgs([]string{"proxy", "list", "--kubeconfig", kubeconfig})
	cmd.SetOut(out)
	err = cmd.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "controller osm-system/outrigger-controller-1: ") {
		t.Errorf("one does not answer: error %v", err)
	}
	if !strings.Contains(out.String(), "one") || strings.Contains(out.String(), "two") {
		t.Errorf("one does not answer: %s", out)
	}
}

// tryCommand returns the error of a command.
func tryCommand(t *testing.T, args ...string) error {
	t.Helper()
	cmd := NewRootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(t.Output())
	cmd.SetErr(t.Output())
	return cmd.ExecuteContext(t.Context())
}

// tokenOf returns a token of a service account of the control plane.
func (c *controllerTest) tokenOf(t *testing.T, name, audience string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: name}}
	if err := c.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if err := c.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}
