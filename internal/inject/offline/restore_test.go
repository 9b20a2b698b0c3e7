package offline_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// TestProbesComeBack injects and uninjects a text with unusually formatted probes, which
// must be restored exactly.
func TestProbesComeBack(t *testing.T) {
	const text = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: cart
spec:
  template:
    metadata:
      annotations: {}
      labels: {}
    spec:
      containers:
      - name: cart
        image: cart
        livenessProbe:
          tcpSocket:
            port: 80
          periodSeconds: 5
        readinessProbe:
          initialDelaySeconds: 5
          grpc:
            port: 9000
          periodSeconds: 5
        startupProbe:
          grpc:
            port: 9000
            service: all
          failureThreshold: 10
        lifecycle:
          preStop:
            httpGet:
              path: "/stop"
              port: 80
      - name: other
        image: other
        livenessProbe:
          httpGet:
            port: 8080
            path: '/healthz'
          initialDelaySeconds: 3
        readinessProbe: {httpGet: {path: /x, port: http}, periodSeconds: 3}
        startupProbe: {grpc: {port: 9000}, periodSeconds: 3}
        ports:
        - name: http
          containerPort: 80
`
	sources := []offline.Source{{Name: "in.yaml", Data: []byte(text)}}
	injected, err := offline.InjectFiles(t.Context(), realEngine(t, offline.Parse(sources)), sources, offline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	back, err := offline.UninjectFiles(t.Context(), inject.Uninject, []offline.Source{{Name: "in.yaml", Data: injected.Outputs[0].Data}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text, string(back.Outputs[0].Data)); diff != "" {
		t.Errorf("the text differs (-before +after):\n%s", diff)
	}
}
