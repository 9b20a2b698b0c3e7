package offline_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

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
            httpHeaders:
              - name: "Cookie"
                value: "shop_session-id=x"   # of the frontend
              - {name: 'X', value: z}
          initialDelaySeconds: 3
        readinessProbe: {httpGet: {path: /x, port: http}, periodSeconds: 3}
        startupProbe: {grpc: {port: 9000}, periodSeconds: 3}
        ports:
        - name: http
          containerPort: 80
      - name: secure
        image: secure
        livenessProbe:
          httpGet:
            scheme: "HTTPS"
            port: "https"
            # Tokens are not sent in plaintext.
            httpHeaders:
              - name: "Authorization"
                value: "Bearer x"   # of the probe

              - {name: 'X', value: z}
            path: '/healthz'
        readinessProbe: {httpGet: {port: 'https', scheme: HTTPS, httpHeaders: [{name: "X", value: 'y'}]}}
        startupProbe:
            tcpSocket: {port: "https"}   # any answer
        ports:
        - name: https
          containerPort: 443
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

// TestNoLineBreakAtTheEnd injects files that end in the middle of their last line. What kubectl
// reads must stay, and uninject must restore the file.
func TestNoLineBreakAtTheEnd(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    image: a\n"
	for _, end := range []string{
		"    args:\n    - |\n      line one\n      line two",
		"    args:\n    - |+\n      line one\n      line two",
		"    args:\n    - |-\n      line one\n      line two",
		"    args:\n    - >\n      line one\n      line two",
		"    workingDir: |\n      /srv",
		"    command: [a, b]",
		"    command: [a, b] # last",
		"    # last",
		"    livenessProbe: {tcpSocket: {port: 80}}",
	} {
		for _, text := range []string{head + end, strings.ReplaceAll(head+end, "\n", "\r\n"), head + "---\n" + head + end} {
			sources := []offline.Source{{Name: "in.yaml", Data: []byte(text)}}
			injected := must(t)(offline.InjectFiles(t.Context(), realEngine(t, offline.Parse(sources)), sources, offline.Options{})).Outputs[0].Data
			// kubectl's reader ends every line.
			for i, c := range containersOf(t, append([]byte(text), '\n')) {
				got := containersOf(t, append(bytes.Clone(injected), '\n'))
				at := slices.IndexFunc(got[i:], func(o corev1.Container) bool { return o.Name == c.Name })
				if at < 0 || !slices.Equal(got[i+at].Args, c.Args) || got[i+at].WorkingDir != c.WorkingDir {
					t.Errorf("%q: container %s becomes %q", text, c.Name, injected)
				}
			}
			back := must(t)(offline.UninjectFiles(t.Context(), inject.Uninject, []offline.Source{{Name: "in.yaml", Data: injected}})).Outputs[0].Data
			if string(back) != text {
				t.Errorf("%q comes back as %q", text, back)
			}
		}
	}
}

// containersOf returns the containers of the last pod of a file.
func containersOf(t *testing.T, text []byte) []corev1.Container {
	t.Helper()
	documents := bytes.Split(text, []byte("---\n"))
	var pod corev1.Pod
	if err := yaml.Unmarshal(documents[len(documents)-1], &pod); err != nil {
		t.Fatal(err)
	}
	return pod.Spec.Containers
}

// TestMisplacedLabels checks the warning about labels and annotations on a workload in place of
// its pod template.
func TestMisplacedLabels(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{`{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","annotations":{"openservicemesh.io/sidecar-injection":"disabled"},"labels":{"openservicemesh.io/sidecar-injection":"disabled"}},"spec":{"template":{"spec":{"containers":[{"name":"a","image":"a"}]}}}}`,
			"labels and annotations of the Deployment itself have no effect on its pods: openservicemesh.io/sidecar-injection; move them to the metadata of the pod template"},
		{`{"kind":"CronJob","apiVersion":"batch/v1","metadata":{"name":"d","annotations":{"openservicemesh.io/sidecar-class":"pipy","openservicemesh.io/metrics":"enabled","a":"b"}},"spec":{"jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"a","image":"a"}]}}}}}}`,
			"labels and annotations of the CronJob itself have no effect on its pods: openservicemesh.io/metrics, openservicemesh.io/sidecar-class; move them to the metadata of the pod template"},
		{`{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"d","annotations":{"openservicemesh.io/sidecar-injection":"disabled"}},"spec":{"template":{"metadata":{"labels":{"openservicemesh.io/sidecar-injection":"enabled"}},"spec":{"containers":[{"name":"a","image":"a"}]}}}}`, ""},
		{`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"d","annotations":{"openservicemesh.io/sidecar-injection":"enabled"}},"spec":{"containers":[{"name":"a","image":"a"}]}}`, ""},
	} {
		sources := []offline.Source{{Name: "in.json", Data: []byte(test.text)}}
		rows := must(t)(offline.InjectFiles(t.Context(), realEngine(t, offline.Parse(sources)), sources, offline.Options{})).Rows
		var got string
		for _, w := range rows[0].Warnings {
			if w.Code == offline.WarningMisplaced {
				got += w.Message
			}
		}
		if got != test.want {
			t.Errorf("%s: the warnings are %v, want %q", test.text, rows[0].Warnings, test.want)
		}
	}
}

// TestRowsOfWhatCannotBeEdited checks that an object of a document that cannot be edited is
// reported once.
func TestRowsOfWhatCannotBeEdited(t *testing.T) {
	sources := []offline.Source{{Name: "in.yaml", Data: []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: a}]}\n")}}
	result, err := offline.InjectFiles(t.Context(), patchEngine{remove("/spec/none")}, sources, offline.Options{})
	if err == nil || len(result.Rows) != 1 || result.Rows[0].Outcome != offline.Failed || result.Rows[0].Name != "p" {
		t.Errorf("the error is %v, the rows are %+v", err, result.Rows)
	}
}
