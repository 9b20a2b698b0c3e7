package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// mode is a MeshConfig.
type mode string

const (
	// permissive: everyone may call everyone.
	permissive mode = "permissive"
	// byPolicy: each call needs a policy.
	byPolicy mode = "by policy"
	// plaintext is permissive without TLS.
	plaintext mode = "plaintext"
	// onDemand is permissive, and sidecars know the services that their pods have called.
	onDemand mode = "on demand"
)

func (m mode) config(class string, threads int) string {
	var plain string
	if m == plaintext {
		plain = fmt.Sprintf(", sidecarDrivers: [{sidecarName: %s, sidecarDisabledMTLS: true}]", class)
	}
	return fmt.Sprintf(`
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar: {sidecarClass: %s, concurrency: %d%s}
  traffic: {enablePermissiveTrafficPolicyMode: %t}
  observability: {enableDebugServer: true}
---
apiVersion: v1
kind: Namespace
metadata:
  name: bench
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
`, class, threads, plain, m != byPolicy)
}

// member is a client or a server.
type member struct {
	namespace, name string
	// class is that of its sidecar, and accessLog the annotation, if they are not empty.
	class, accessLog string
	// address is a fixed address, if it is not empty.
	address string
	// onDemand has its sidecar get services when the pod calls them.
	onDemand bool
}

func (m *member) path() string { return m.namespace + "/" + m.name }

// manifest returns the pod with an account of the same name. A server also has a service.
func (m *member) manifest(server bool) string {
	var text strings.Builder
	annotations := []string{}
	if m.class != "" {
		annotations = append(annotations, "openservicemesh.io/sidecar-class: "+m.class)
	}
	if m.accessLog != "" {
		annotations = append(annotations, "openservicemesh.io/access-log: "+m.accessLog)
	}
	if m.onDemand {
		annotations = append(annotations, "openservicemesh.io/outbound-services: on-demand")
	}
	var status string
	if m.address != "" {
		status = fmt.Sprintf("status: {podIP: %[1]s, podIPs: [{ip: %[1]s}]}\n", m.address)
	}
	fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[2]s, labels: {app: %[1]s}, annotations: {%[3]s}}
spec: {serviceAccountName: %[1]s, containers: [{name: app, image: in-the-bench}]}
%[4]s`, m.name, m.namespace, strings.Join(annotations, ", "), status)
	if !server {
		return text.String()
	}
	fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %[1]s, namespace: %[2]s}\nspec:\n  selector: {app: %[1]s}\n  ports:\n", m.name, m.namespace)
	for _, p := range protocols {
		fmt.Fprintf(&text, "  - {name: %s, port: %d, targetPort: %d}\n", ports[p].name, ports[p].service, ports[p].target)
	}
	return text.String()
}

// allow returns a policy that lets the client send all requests to the server.
func allow(from, to *member) string {
	return fmt.Sprintf(`---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: %[1]s-%[3]s, namespace: %[2]s}
spec: {matches: [{name: all, pathRegex: ".*", methods: ["*"]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: %[1]s-%[3]s, namespace: %[2]s}
spec:
  destination: {kind: ServiceAccount, name: %[1]s, namespace: %[2]s}
  sources: [{kind: ServiceAccount, name: %[3]s, namespace: %[4]s}]
  rules: [{kind: HTTPRouteGroup, name: %[1]s-%[3]s, matches: [all]}]
`, to.name, to.namespace, from.name, from.namespace)
}

// bench is what all measurements need.
type bench struct {
	dir      string
	programs localmesh.Programs
	threads  int
	// classes are those with a proxy on this machine.
	classes []string
	say     func(format string, args ...any)
	meshes  int
	// inspect, if set, is called with the running pairs before they are measured.
	inspect func(context.Context, map[mode]*localmesh.Mesh, []pair) error
}

// meshOptions are a mesh for withMesh.
type meshOptions struct {
	mode mode
	// class is the default class.
	class   string
	servers []*member
	clients []*member
	// more are additional manifests.
	more string
	// starts and change are those of localmesh.Options.
	starts func(*corev1.Pod) bool
	change func(*corev1.Pod) error
}

// withMesh calls the function with a running mesh, in which all servers answer.
func (b *bench) withMesh(ctx context.Context, o *meshOptions, f func(*localmesh.Mesh) error) (err error) {
	b.meshes++
	dir := filepath.Join(b.dir, fmt.Sprintf("mesh%d", b.meshes))
	text := o.mode.config(o.class, b.threads) + o.more
	for _, m := range o.servers {
		text += m.manifest(true)
	}
	for _, m := range o.clients {
		text += m.manifest(false)
	}
	mesh, err := localmesh.New(ctx, localmesh.Options{
		Dir: dir, Manifests: map[string]string{"bench.yaml": text}, Programs: b.programs, Starts: o.starts, Change: o.change,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mesh.Close(), os.RemoveAll(dir)) }()
	for _, m := range o.servers {
		done, err := serve(ctx, mesh.Pod(m.path()))
		if err != nil {
			return fmt.Errorf("starting the server %s: %w", m.path(), err)
		}
		defer done()
	}
	if err := mesh.WaitReady(ctx); err != nil {
		return err
	}
	return f(mesh)
}

// pathOf returns the side from the client to the service of the server. A member without a
// class has no sidecar.
func pathOf(mesh *localmesh.Mesh, name string, from, to *member) *side {
	s := &side{name: name, client: mesh.Pod(from.path())}
	if to.class == "" {
		s.host, s.target = mesh.Pod(to.path()).Addresses()[0].String(), true
		return s
	}
	s.host = to.name + "." + to.namespace
	for _, m := range []*member{from, to} {
		s.sidecars = append(s.sidecars, sidecarOf(mesh.Pod(m.path()), m.class))
	}
	return s
}

// awaitAnswer waits until the path works: a proxy may get its configuration after it is
// ready.
func awaitAnswer(ctx context.Context, s *side, p protocol) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := once(ctx, s.client, s.address(p), p)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s, %s: %w", s.name, p, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func once(ctx context.Context, from *lab.Pod, address string, p protocol) error {
	conn, err := open(ctx, from, address, p)
	if err != nil {
		return err
	}
	defer conn.close()
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return conn.exchange(limited)
}
