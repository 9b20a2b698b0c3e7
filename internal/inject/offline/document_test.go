package offline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

const (
	smallPod    = "apiVersion: v1\nkind: Pod\nspec:\n  a: b\n"
	smallResult = "apiVersion: v1\nkind: Pod\nspec:\n  a: b\n  x: \"yes\"\n"
)

var small = patchEngine{add("/spec/x", "yes")}

func TestText(t *testing.T) {
	const bom = "\ufeff"
	tests := []struct{ name, in, want string }{
		{"empty file", "", ""},
		{"only comments", "# nothing\n", "# nothing\n"},
		{"only separators", "---\n---\n", "---\n---\n"},
		{"byte order mark", bom + smallPod, bom + smallResult},
		{"byte order mark and separator", bom + "---\n" + smallPod, bom + "---\n" + smallResult},
		{"no line end at the end", strings.TrimSuffix(smallPod, "\n"), strings.TrimSuffix(smallResult, "\n")},
		{"no line end, then a separator", smallPod + "---", smallResult + "---"},
		{"directive", "%YAML 1.1\n# c\n---\n" + smallPod, "%YAML 1.1\n# c\n---\n" + smallResult},
		{"CRLF around separators", "---\r\n# c\r\n" + crlf(smallPod) + "---\r\n" + crlf(smallPod),
			"---\r\n# c\r\n" + crlf(smallResult) + "---\r\n" + crlf(smallResult)},
		{"each document has its own line ends", crlf(smallPod) + "---\n" + smallPod, crlf(smallResult) + "---\n" + smallResult},
		{"document behind its separator", "--- {apiVersion: v1, kind: Pod, spec: {a: b}} # c\n", "--- {apiVersion: v1, kind: Pod, spec: {a: b, x: \"yes\"}} # c\n"},
		{"comment behind the separator", "--- # c\n" + smallPod, "--- # c\n" + smallResult},
		{"document ends", smallPod + "...\n# c\n" + smallPod + "... # d\n---\n", smallResult + "...\n# c\n" + smallResult + "... # d\n---\n"},
		{"block scalar that keeps its last lines", smallPod + "  k: |+\n    x\n\n\nstatus: {}\n", strings.TrimSuffix(smallPod, "\n") + "\n  k: |+\n    x\n\n\n  x: \"yes\"\nstatus: {}\n"},
		{"exotic line ends within text", "apiVersion: v1\nkind: Pod\nspec:\n  a: \"b \u0085 c\u2028d\"\n", "apiVersion: v1\nkind: Pod\nspec:\n  a: \"b \u0085 c\u2028d\"\n  x: \"yes\"\n"},
		{"JSON on one line", `{"kind":"Pod","apiVersion":"v1","spec":{}}`, `{"kind":"Pod","apiVersion":"v1","spec":{"x":"yes"}}`},
		{"JSON with CRLF and tabs", "{\r\n\t\"kind\": \"Pod\",\r\n\t\"apiVersion\": \"v1\",\r\n\t\"spec\": {}\r\n}\r\n",
			"{\r\n\t\"kind\": \"Pod\",\r\n\t\"apiVersion\": \"v1\",\r\n\t\"spec\": {\r\n\t\t\"x\": \"yes\"\r\n\t}\r\n}\r\n"},
		{"JSON with a comment is YAML", "{\"kind\": \"Pod\", # c\n \"apiVersion\": \"v1\", \"spec\": {}}", "{\"kind\": \"Pod\", # c\n  \"apiVersion\": \"v1\", \"spec\": {x: \"yes\"}}"},
		{"YAML 1.1 booleans", "apiVersion: v1\nkind: Pod\nspec: {on: yes, y: n}\n", "apiVersion: v1\nkind: Pod\nspec: {on: yes, y: n, x: \"yes\"}\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := inject1(t, small, test.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func TestTextRefused(t *testing.T) {
	bomb := "apiVersion: v1\nkind: Pod\na: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 10), ", "))
	}
	merges := "apiVersion: v1\nkind: Pod\nm0: &m0 {a: b}\n"
	for i := range 60 {
		merges += fmt.Sprintf("m%d: &m%d {<<: [*m%d, *m%d], k%d: v}\n", i+1, i+1, i, i, i)
	}
	tests := []struct{ name, in, want string }{
		{"not UTF-8", smallPod + "\xff", "UTF-8"},
		{"UTF-16", "\xff\xfea\x00:\x00", "UTF-8"},
		{"control character", smallPod + "b: \"\x01\"\n", "control"},
		{"tab as indentation", smallPod + "status:\n\ta: b\n", "document 1 (from line 1)"},
		{"key twice", smallPod + "---\n\n" + smallPod + "kind: Pod\n", `document 2 (from line 6): yaml: line 6: key "kind" is also in line 3`},
		{"key twice, once in quotes", smallPod + "b:\n  1: x\n  \"1\": y\n", `key "1"`},
		{"key that is a mapping", "{a: b}: c\n", "not a scalar"},
		{"scalar", "text\n", "not a mapping"},
		{"list", "- " + strings.ReplaceAll(smallPod, "\n", "\n  "), "not a mapping"},
		{"old Macintosh line ends", strings.ReplaceAll(smallPod+"---\n"+smallPod, "\n", "\r"), "content after the end"},
		{"separator after an exotic line end", smallPod + "c: d\u2028---\u2028" + smallPod, "content after the end"},
		{"alias bomb", bomb, "excessive aliasing"},
		{"merge bomb", merges, "excessive aliasing"},
		{"deep flow", smallPod + "c: " + strings.Repeat("[", 20000) + strings.Repeat("]", 20000), "depth"},
		{"deep block", smallPod + "c:\n" + strings.Repeat("- ", 20000) + "x\n", "depth"},
		{"deep JSON", `{"kind":"Pod","apiVersion":"v1","spec":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}", "depth"},
		{"unclosed JSON", `{"kind":"Pod","apiVersion":"v1","spec":`, "document 1"},
		{"JSON list", `[{"kind":"Pod"}]`, "not a mapping"},
		{"Lists in Lists", strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 20) + strings.Repeat("]}", 20), "more than 10 nested Lists"},
		{"item that is null", `{"apiVersion":"v1","kind":"List","items":[null]}`, "/items/0: null"},
		{"huge file", smallPod + strings.Repeat("#", offline.MaxFileSize), "MiB"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			began := time.Now()
			got, err := inject1(t, small, test.in)
			if err == nil {
				t.Fatalf("no error, but\n%.1000s", got)
			}
			for _, want := range []string{test.want, "in.yaml"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestLarge checks that the cost is linear in the size of the file.
func TestLarge(t *testing.T) {
	var list, shared strings.Builder
	list.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	shared.WriteString("apiVersion: v1\nkind: Pod\nspec:\n  x:\n")
	for i := range 2000 {
		fmt.Fprintf(&list, "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: p%d\n  spec:\n    # comment\n    a: b\n", i)
		fmt.Fprintf(&shared, "  - &a%d\n    k: v\n", i)
	}
	shared.WriteString("status:\n")
	for i := range 2000 {
		fmt.Fprintf(&shared, "- *a%d\n", i)
	}
	for name, text := range map[string]string{
		"many objects":           list.String(),
		"many documents":         strings.Repeat("---\n"+smallPod, 5000),
		"many anchors that go":   shared.String(),
		"many lines of comments": smallPod + strings.Repeat("# comment\n\n", 20000) + "status: {}\n",
		"one long text":          smallPod + "b: |\n" + strings.Repeat("  line # of text\n", 50000),
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			if _, err := inject1(t, small, text); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestSkipped checks that an unchanged document is written byte for byte.
func TestSkipped(t *testing.T) {
	for _, text := range []string{
		"kind:   Pod\napiVersion: 'v1'\n\n\nspec:   {a:   b}\n",
		"--- \nkind: Pod\r\napiVersion: v1\nspec: {}   \n\n...\n",
		"{ \"kind\":\"Pod\" ,\n\"apiVersion\":\"v1\",\"spec\":{}\t}  \n",
		"\ufeffkind: Pod\napiVersion: v1\nspec: &a {b: c}\nd: *a",
	} {
		got, err := inject1(t, patchEngine{}, text)
		if err != nil {
			t.Fatal(err)
		}
		if got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestNamespaces(t *testing.T) {
	const text = `
apiVersion: v1
kind: Pod
metadata: {name: late}
spec: {}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Namespace
  metadata:
    name: written
    labels: {l: old}
---
apiVersion: v1
kind: Namespace
metadata:
  name: written
  labels: {l: new}
  annotations: {a: b}
---
apiVersion: v1
kind: Namespace
metadata: {name: bare}
---
apiVersion: example.com/v1
kind: Namespace
metadata: {name: foreign, labels: {x: y}}
`
	manifests := offline.Parse([]offline.Source{{Name: "in.yaml", Data: []byte(text)}})
	lookup := offline.NamespaceLookup(manifests.Namespaces(), "osm")
	assumed := func(name string) *inject.Namespace {
		return &inject.Namespace{
			Name:        name,
			Labels:      map[string]string{"kubernetes.io/metadata.name": name, metadata.MonitoredBy: "osm"},
			Annotations: map[string]string{metadata.Injection: "enabled"},
		}
	}
	for _, want := range []*inject.Namespace{
		{
			Name:        "written",
			Labels:      map[string]string{"kubernetes.io/metadata.name": "written", "l": "new"},
			Annotations: map[string]string{"a": "b"},
		},
		{Name: "bare", Labels: map[string]string{"kubernetes.io/metadata.name": "bare"}},
		assumed("other"),
		assumed("foreign"),
	} {
		for range 2 {
			got, err := lookup(t.Context(), want.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", want.Name, diff)
			}
		}
	}
}

// TestNamespaceOfRequest checks the namespace and the owner of an object's pods in the request,
// and that the pod does not get the workload's name.
func TestNamespaceOfRequest(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {%s}\nspec: {template: {metadata: {labels: {a: b}, namespace: wrong}, spec: {}, extra: 1}}\n"
	tests := []struct{ name, flag, written, want string }{
		{"the workload's own wins", "flag", "name: d, namespace: own", "own"},
		{"else the flag's", "flag", "name: d", "flag"},
		{"else default", "", "name: d", "default"},
		{"the workload's name is generated", "", "generateName: d-", "default"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var requests []inject.Request
			engine := engineFunc(func(req inject.Request) inject.Result {
				requests = append(requests, req)
				return inject.Result{Decision: inject.Decision{Outcome: inject.Skip}}
			})
			text := fmt.Sprintf(deployment, test.written)
			r, err := offline.InjectFiles(t.Context(), engine, []offline.Source{{Data: []byte(text)}}, offline.Options{Namespace: test.flag})
			if err != nil {
				t.Fatal(err)
			}
			want := []inject.Request{{
				Namespace: test.want,
				OwnerKind: "Deployment", OwnerName: "d",
				Pod: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"},"namespace":"wrong"},"spec":{}}`),
			}}
			if diff := cmp.Diff(want, requests, cmpopts.IgnoreUnexported(inject.Request{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := r.Rows[0].Namespace; got != test.want {
				t.Errorf("the report says namespace %q", got)
			}
		})
	}
}

type engineFunc func(inject.Request) inject.Result

func (f engineFunc) Inject(_ context.Context, req inject.Request) inject.Result { return f(req) }

func TestUninjectError(t *testing.T) {
	uninject := func([]byte) ([]inject.Operation, error) { return nil, errors.New("bad annotation") }
	r, err := offline.UninjectFiles(t.Context(), uninject, []offline.Source{{Name: "in.yaml", Data: []byte(smallPod)}})
	if err == nil || !strings.Contains(err.Error(), "bad annotation") || len(r.Outputs) > 0 {
		t.Errorf("error %v, outputs %v", err, r.Outputs)
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := offline.InjectFiles(ctx, small, []offline.Source{{Data: []byte(smallPod)}}, offline.Options{})
	if !errors.Is(err, context.Canceled) || len(r.Outputs) > 0 {
		t.Errorf("error %v, outputs %v", err, r.Outputs)
	}
}
