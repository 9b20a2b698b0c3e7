// Package city generates the manifests of a mesh of any size, for tests and
// benchmarks of large meshes. Equal arguments give equal manifests.
//
// It writes text as a user would and must not import other packages of the module.
package city

import (
	"fmt"
	"io"
	"strings"
)

// Options describe the size of a mesh.
type Options struct {
	// Services is the number of services, of which ten share a namespace.
	Services int
	// Replicas is the number of pods of each service.
	Replicas int
	// Permissive allows all calls. Otherwise each service may be called by the next ten.
	Permissive bool
}

// service writes a Service; most speak HTTP.
func service(w io.Writer, i int) {
	namespace, name := fmt.Sprintf("ns-%d", i/10), Name(i)
	port := "{name: http, port: 80, targetPort: 8080}"
	switch i % 10 {
	case 7:
		port = "{name: grpc-api, port: 80, targetPort: 8080}"
	case 8:
		port = "{name: tcp-data, port: 80, targetPort: 8080}"
	case 9:
		port = "{name: tcp-server-first, port: 80, targetPort: 8080}"
	}
	document(w, `
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  selector: {app: %s}
  ports: [%s]`, name, namespace, name, port)
}

// Name returns the name of a service by its number, which is also the name of its
// Deployment and its service account. Its namespace is ns-<number / 10>.
func Name(i int) string { return fmt.Sprintf("svc-%d", i) }

// Write writes the manifests: a MeshConfig and, for each service, a Deployment and a
// Service, a split for one in ten, an UpstreamTrafficSetting for one in five, and a
// TrafficTarget unless the mesh is permissive.
func Write(w io.Writer, o Options) error {
	out := &errorWriter{to: w}
	document(out, `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: %t}`, o.Permissive)
	for i := range o.Services {
		namespace, name := fmt.Sprintf("ns-%d", i/10), Name(i)
		service(out, i)
		document(out, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, namespace: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      serviceAccountName: %s
      containers:
      - {name: app, image: app, ports: [{name: app, containerPort: 8080}]}`, name, namespace, o.Replicas, name, name, name)
		if i%10 == 0 {
			document(out, `
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: %s, namespace: %s}
spec:
  service: %s
  backends: [{service: %s, weight: 90}, {service: %s, weight: 10}]`, name, namespace, name, name, Name(min(i+1, o.Services-1)))
		}
		if i%5 == 0 {
			document(out, `
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: %s, namespace: %s}
spec:
  host: %s.%s.svc.cluster.local
  connectionSettings: {tcp: {maxConnections: 100}, http: {maxRequests: 100}}`, name, namespace, name, namespace)
		}
		if !o.Permissive {
			target(out, o, i)
		}
	}
	return out.err
}

func target(w io.Writer, o Options, i int) {
	namespace, name := fmt.Sprintf("ns-%d", i/10), Name(i)
	var sources []string
	for k := 1; k <= 10; k++ {
		caller := (i + k) % o.Services
		sources = append(sources, fmt.Sprintf("{kind: ServiceAccount, name: %s, namespace: ns-%d}", Name(caller), caller/10))
	}
	kind := "HTTPRouteGroup"
	if i%10 >= 8 {
		kind = "TCPRoute"
		document(w, `
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: %s, namespace: %s}
spec:
  matches: {ports: [8080]}`, name, namespace)
	} else {
		document(w, `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: %s, namespace: %s}
spec:
  matches:
  - {name: read, pathRegex: /read.*, methods: [GET]}
  - {name: write, pathRegex: /write.*, methods: [POST, PUT]}`, name, namespace)
	}
	document(w, `
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: %s, namespace: %s}
spec:
  destination: {kind: ServiceAccount, name: %s, namespace: %s}
  sources: [%s]
  rules:
  - {kind: %s, name: %s}`, name, namespace, name, namespace, strings.Join(sources, ", "), kind, name)
}

func document(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "---"+format+"\n", args...)
}

// errorWriter keeps the first error and writes nothing after it.
type errorWriter struct {
	to  io.Writer
	err error
}

func (w *errorWriter) Write(p []byte) (int, error) {
	if w.err == nil {
		_, w.err = w.to.Write(p)
	}
	return len(p), nil
}
