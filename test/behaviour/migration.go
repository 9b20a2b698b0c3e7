package behaviour

import (
	"fmt"
	"strings"
	"testing"
)

// moverTemplate is a pod of the moved service: its name, class and readiness.
const moverTemplate = `
---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: shop
  labels: {app: mover}
  annotations: {openservicemesh.io/sidecar-class: %[2]s}
spec:
  serviceAccountName: mover
  containers: [{name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}]}]
status: {conditions: [{type: Ready, status: "%[3]s"}]}
`

// moverService is called by a client of each class.
var moverService = service("mover", "selector: {app: mover}, ports: [{name: http, port: 80, targetPort: 8080}]") +
	trafficTarget("shop/mover", "mover", "{kind: HTTPRouteGroup, name: cart}", "users/web", "shop/cart-v2")

const moverURL = "http://mover.shop/cart"

// testMigration replaces the pods of a service one by one, as a Deployment does: a new
// pod gets requests when it is ready, and then an old one terminates gracefully.
func testMigration(t *testing.T, w *testMesh) {
	const pods = 2
	w.apply(t, "mover.yaml", moverService)
	r := rollout{w: w}
	t.Cleanup(func() { w.forget(t, rolloutFile) })
	for i := range pods {
		r.add(t, fmt.Sprintf("old-%d", i), w.Client)
	}
	clients := []string{"users/web", "shop/cart-v2"}
	var loads []*load
	for _, client := range clients {
		w.get(t, client, moverURL, ok)
		loads = append(loads, w.startLoad(w.pod(t, client), moverURL, 3))
	}
	for i := range pods {
		name := fmt.Sprintf("new-%d", i)
		r.add(t, name, w.Server)
		for _, l := range loads {
			w.eventually(t, func() error {
				if _, of := l.count(name); of == 0 {
					return fmt.Errorf("pod %s has got no request", name)
				}
				return nil
			})
		}
		// The oldest pod is removed when the next one is added.
		r.pods = r.pods[1:]
	}
	r.apply(t)
	for _, l := range loads {
		l.more(t, 100)
		l.end(t)
	}
}

// rollout is the desired set of pods of the service.
type rollout struct {
	w    *testMesh
	pods []mover
}

type mover struct {
	name, class string
	ready       bool
}

const rolloutFile = "rollout.yaml"

// apply updates the pods, and returns when removed ones have ended.
func (r *rollout) apply(t *testing.T) {
	t.Helper()
	var manifest strings.Builder
	for _, p := range r.pods {
		ready := map[bool]string{true: "True", false: "False"}[p.ready]
		fmt.Fprintf(&manifest, moverTemplate, p.name, p.class, ready)
	}
	r.w.set(t, rolloutFile, manifest.String())
}

// add starts a pod, and marks it ready when its application and sidecar are.
func (r *rollout) add(t *testing.T, name, class string) {
	t.Helper()
	r.pods = append(r.pods, mover{name: name, class: class})
	r.apply(t)
	pod := r.w.pod(t, "shop/"+name)
	startApplication(t, pod)
	if err := pod.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.pods[len(r.pods)-1].ready = true
	r.apply(t)
}
