package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// permissive returns the pods that accept plaintext and would not with the mesh-wide mode
// Strict. Pods whose mode is not known are among them. Those without a proxy are not, since
// they accept only mesh TLS, whatever the mode.
func permissive(report *traffic.Report) []traffic.Pod {
	return slices.DeleteFunc(slices.Clone(report.Pods), func(p traffic.Pod) bool {
		return p.Proxyless || p.KeepsInboundTLS || p.InboundTLS == string(mesh.Strict) || p.InboundTLS == traffic.TLSDisabled
	})
}

// stayPermissive is how a workload is left out of these checks and of the change.
const stayPermissive = "keep the workload Permissive: annotate its pod template with openservicemesh.io/inbound-tls-mode: Permissive"

func strictCounts(f *Facts, r *report) {
	if err := f.traffic.err; err != nil {
		r.add(Error, "", "docs/observe.md describes what reading the proxies needs", "the proxies cannot be read, so whether anybody sends plaintext is not known: %v", err)
		return
	}
	var unknown, unread []problem
	pods := permissive(f.traffic.value)
	for i := range pods {
		pod := &pods[i]
		object := "Pod/" + pod.Name.String()
		switch {
		case pod.InboundTLS == "":
			unknown = append(unknown, problem{object, "the controller does not say which inbound TLS mode it has"})
		case !pod.Read:
			unread = append(unread, problem{object, "its proxy was not read: " + cmp.Or(pod.Problem, "no reason is known")})
		}
	}
	r.each(Error, unknown, func(string) string { return "upgrade the control plane: 'outrigger upgrade'" })
	r.each(Error, unread, func(string) string {
		return "make port 15010 of the pod reachable for the controller, or " + stayPermissive
	})
	if len(r.findings) == 0 {
		r.ok("all %d pods with the mesh-wide inbound TLS mode Permissive were read", len(pods))
	}
}

// plaintext is how much a workload has received without mesh TLS.
type plaintext struct{ requests, connections float64 }

func strictPlaintext(f *Facts, r *report) {
	if f.traffic.err != nil {
		r.add(Error, "", "see the check strict-ready/counts", "it is not known whether anybody sends plaintext")
		return
	}
	received := make(map[string]plaintext)
	var order []string
	for _, pod := range permissive(f.traffic.value) {
		object := workloadOf(&pod)
		for i := range pod.Flows {
			flow := &pod.Flows[i]
			n := flow.TLS[telemetry.NoTLS]
			if flow.Reporter != telemetry.ReporterDestination || n == 0 {
				continue
			}
			sum, found := received[object]
			if !found {
				order = append(order, object)
			}
			if flow.Protocol == telemetry.TCP {
				sum.connections += n
			} else {
				sum.requests += n
			}
			received[object] = sum
		}
	}
	slices.Sort(order)
	var problems []problem
	for _, object := range order {
		problems = append(problems, problem{object, fmt.Sprintf("it has received %.0f requests and %.0f TCP connections without mesh TLS", received[object].requests, received[object].connections)})
	}
	r.each(Error, problems, func(string) string {
		return "find the callers with 'outrigger check-inject', and inject a sidecar into them; what an IngressBackend allows stays allowed. Or " + stayPermissive
	})
	if len(r.findings) == 0 {
		r.ok("no plaintext was counted; HAProxy does not count TCP connections that are still open")
	}
}

// workloadOf names the workload of a pod.
func workloadOf(pod *traffic.Pod) string {
	if pod.Owner.Name == "" {
		return "Pod/" + pod.Name.String()
	}
	kinds := map[string]string{"deployment": "Deployment", "statefulset": "StatefulSet", "daemonset": "DaemonSet", "replicaset": "ReplicaSet", "job": "Job"}
	return cmp.Or(kinds[pod.Owner.Kind], pod.Owner.Kind) + "/" + pod.Namespace + "/" + pod.Owner.Name
}
