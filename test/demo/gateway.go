package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// gatewayTemplate is a gateway that lets everyone browse the bookstore, and podTemplate one of its
// pods. Without a cluster nobody makes its pods.
const (
	gatewayTemplate = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: outrigger-%[1]s}
spec: {controllerName: outrigger.openservicemesh.io/controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: bookstore}
spec:
  gatewayClassName: outrigger-%[1]s
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: door, namespace: bookstore}
spec:
  parentRefs: [{name: door}]
  hostnames: [books.localhost]
  rules: [{backendRefs: [{name: bookstore, port: 80}]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: door-v1, namespace: bookstore}
spec:
  destination: {kind: ServiceAccount, name: bookstore-v1, namespace: bookstore}
  sources: [{kind: ServiceAccount, name: door, namespace: bookstore}]
  rules: [{kind: HTTPRouteGroup, name: bookstore, matches: [browse]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: door-v2, namespace: bookstore}
spec:
  destination: {kind: ServiceAccount, name: bookstore-v2, namespace: bookstore}
  sources: [{kind: ServiceAccount, name: door, namespace: bookstore}]
  rules: [{kind: HTTPRouteGroup, name: bookstore, matches: [browse]}]
`
	podTemplate = `---
apiVersion: v1
kind: Pod
metadata:
  name: door-%[1]s
  namespace: bookstore
  labels: {gateway.networking.k8s.io/gateway-name: door}
  annotations: {openservicemesh.io/sidecar-class: %[1]s}
spec:
  serviceAccountName: door
  containers: [{name: outrigger-proxy, image: auto, ports: [{containerPort: 80}]}]
`
)

// gateways are the classes of the demo's sidecars whose proxies can be gateways.
func gateways(class string) []string {
	all := []string{class}
	if class == Mixed {
		all = nil
		for _, m := range mixture {
			all = append(all, m.class)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(c string) bool { return !localmesh.ServesGateways(c) })
}

// open starts a gateway with a pod of each class, and calls the bookstore through each.
func (s *stage) open(ctx context.Context) error {
	classes := gateways(s.opts.Class)
	if len(classes) == 0 {
		return nil
	}
	manifest := fmt.Sprintf(gatewayTemplate, classes[0])
	for _, class := range classes {
		manifest += fmt.Sprintf(podTemplate, class)
	}
	if err := s.mesh.Apply(ctx, "gateway.yaml", manifest); err != nil {
		return err
	}
	for _, class := range classes {
		address := net.JoinHostPort(s.mesh.Pod("bookstore/door-" + class).Addresses()[0].String(), "80")
		answer, err := s.browse(ctx, address)
		if err != nil {
			return fmt.Errorf("calling the bookstore through the gateway of class %s: %w", class, err)
		}
		fmt.Fprintf(s.opts.Out, "      %-8s GET http://books.localhost/books at %s: %s\n", class, address, answer)
	}
	return nil
}

// browse asks for the bookstore's books from outside the mesh, until the gateway answers.
func (s *stage) browse(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: s.mesh.Lab().Node().Dial, DisableKeepAlives: true}}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/books", nil)
		if err != nil {
			return "", err
		}
		r.Host = "books.localhost"
		response, err := client.Do(r)
		if err == nil {
			var body []byte
			body, err = io.ReadAll(io.LimitReader(response.Body, 60))
			response.Body.Close()
			if err == nil && response.StatusCode == http.StatusOK {
				return fmt.Sprintf("%s %.40q", response.Status, strings.TrimSpace(string(body))), nil
			}
			if err == nil {
				err = fmt.Errorf("the answer is %s", response.Status)
			}
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
