package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// tapped is an API server with two pods that have a sidecar, one without, and one that has
// ended. The log of cart-0 is Envoy's, and that of web-0 HAProxy's.
var tapped = map[string]string{
	"cart-0": `[info] agent: the proxy has started
{"downstream_peer":"spiffe://cluster.local/ns/shop/sa/web","downstream_remote":"10.0.0.2:40000","duration":3,"method":"GET","authority":"cart","path":"/items","reason":"","request_id":"r1","response_code":200,"response_flags":"-","start_time":"2026-11-25T14:00:00.5Z"}
{"downstream_peer":"spiffe://cluster.local/ns/users/sa/thief","downstream_remote":"10.0.0.9:40000","duration":0,"method":"GET","authority":"cart","path":"/stolen","reason":"access","request_id":"r2","response_code":403,"response_flags":"-","start_time":"2026-11-25T14:00:01Z"}
{"downstream_remote":"10.0.0.9:40001","duration":0,"method":null,"path":null,"reason":"plaintext","response_code":0,"start_time":"2026-11-25T14:00:02Z"}
`,
	"web-0": `{"upstream_peer":"spiffe://cluster.local/ns/shop/sa/cart","downstream_remote":"10.0.0.2:50000","duration":4,"method":"GET","authority":"cart","path":"/items","reason":"","request_id":"r1","response_code":200,"response_flags":"----","start_time":"2026-11-25T14:00:00Z"}
{"upstream_peer":"-","upstream_host":"-:-","downstream_remote":"10.0.0.2:50001","duration":0,"method":"GET","authority":"gone","path":"/","reason":"no_endpoint","request_id":"-","response_code":503,"response_flags":"SC--","start_time":"2026-11-25T14:00:03Z"}
`,
	"bare-0": "", "job-0": "",
}

// changes are what happens after the first list of pods.
type changes struct {
	// late are the names of pods that the first list does not have.
	late []string
	// restarted is the name of a pod whose sidecar restarts after its first access has been read.
	restarted string
}

// serveTapped returns the kubeconfig of a user of that API server. Logs that are followed do not
// end, unless their sidecar restarts.
func serveTapped(t *testing.T, then changes) string {
	t.Helper()
	var lists atomic.Int32
	pods := corev1.PodList{}
	for i, name := range []string{"cart-0", "web-0", "bare-0", "job-0"} {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.0.%d", i+1)},
		}
		if name != "bare-0" {
			pod.Spec.InitContainers = []corev1.Container{{Name: driver.ProxyContainer}}
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: driver.ProxyContainer, ContainerID: "containerd://" + name}}
		}
		if name == "job-0" {
			pod.Status.Phase = corev1.PodSucceeded
		}
		pods.Items = append(pods.Items, pod)
	}
	const path = "/api/v1/namespaces/shop/pods"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, path+"/"), "/log")
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == name })
		switch {
		case r.URL.Path == path || r.URL.Path == "/api/v1/pods":
			list := pods
			if at, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "status.podIP="); ok {
				list.Items = slices.DeleteFunc(slices.Clone(pods.Items), func(p corev1.Pod) bool { return p.Status.PodIP != at })
			} else if n := lists.Add(1); n == 1 {
				list.Items = slices.DeleteFunc(slices.Clone(pods.Items), func(p corev1.Pod) bool { return slices.Contains(then.late, p.Name) })
			} else if at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == then.restarted }); at >= 0 {
				list.Items = slices.Clone(pods.Items)
				list.Items[at].Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: driver.ProxyContainer, ContainerID: "containerd://second"}}
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		case r.URL.Path == "/api/v1/services":
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(corev1.ServiceList{Items: []corev1.Service{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
				Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Port: 5432}}},
			}}})
		case i < 0:
			http.NotFound(w, r)
		case strings.HasSuffix(r.URL.Path, "/log"):
			if r.URL.Query().Get("container") != driver.ProxyContainer {
				http.Error(w, "it has no such container", http.StatusBadRequest)
				return
			}
			_, _ = w.Write([]byte(tapped[name]))
			if name == then.restarted && lists.Load() == 1 {
				return
			}
			if r.URL.Query().Get("follow") == "true" {
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(pods.Items[i])
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u, namespace: shop}}]\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u}]\n", server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTap(t *testing.T) {
	t.Setenv("TZ", "UTC")
	kubeconfig := serveTapped(t, changes{})
	for _, tt := range []struct {
		args string
		want []string
		err  string
	}{
		{args: "", want: []string{
			"shop/cart-0 <- shop/web GET cart/items 200 3ms",
			"shop/cart-0 <- users/thief GET cart/stolen 403 0s refused: access",
			"shop/cart-0 <- 10.0.0.9:40001 TCP 0s refused: plaintext",
			"shop/web-0 -> shop/cart GET cart/items 200 4ms",
			"shop/web-0 -> nobody GET gone/ 503 0s refused: no_endpoint",
		}},
		{args: "cart-0 --refused", want: []string{
			"shop/cart-0 <- users/thief GET cart/stolen 403 0s refused: access",
			"shop/cart-0 <- 10.0.0.9:40001 TCP 0s refused: plaintext",
		}},
		{args: "--from users/thief -o wide", want: []string{"shop/cart-0 <- users/thief GET cart/stolen 403 0s refused: access flags=- request-id=r2"}},
		{args: "--to shop", want: []string{"shop/web-0 -> shop/cart GET cart/items 200 4ms"}},
		{args: "--status 5xx", want: []string{"shop/web-0 -> nobody GET gone/ 503 0s refused: no_endpoint"}},
		{args: "--request-id r1 --path /items --method get", want: []string{"shop/cart-0 <- shop/web GET cart/items 200 3ms", "shop/web-0 -> shop/cart GET cart/items 200 4ms"}},
		{args: "web-0 --max 1", want: []string{"shop/web-0 -> shop/cart GET cart/items 200 4ms"}},
		{args: "bare-0", err: "there are no running pods with a sidecar"},
		{args: "gone-0", err: "pod/gone-0 in namespace shop: "},
		{args: "--reason no", err: `there is no reason "no"; reasons are access, plaintext`},
		{args: "--status 9xx", err: `the status "9xx" is neither`},
		{args: "-A web-0", err: "-A can't be combined"},
		{args: "-o yaml", err: "-o yaml: formats are wide and json"},
	} {
		var out, warnings bytes.Buffer
		cmd := newTapCommand()
		cmd.SetOut(&out)
		cmd.SetErr(&warnings)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(strings.Fields(tt.args), "--follow=false", "--kubeconfig", kubeconfig))
		if err := cmd.ExecuteContext(t.Context()); tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: the error is %v, want %s", tt.args, err, tt.err)
			}
			continue
		} else if err != nil {
			t.Errorf("%q: %v\n%s", tt.args, err, warnings.String())
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			// The time is in the user's zone.
			_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			got = append(got, text)
		}
		slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:len("shop/cart")], b[:len("shop/cart")]) })
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.args, diff)
		}
	}
}

// TestTapFollows: without an end of its own, the command ends with the last line that was
// asked for, which is of a pod that starts later.
func TestTapFollows(t *testing.T) {
	kubeconfig := serveTapped(t, changes{late: []string{"web-0"}})
	var out, warnings bytes.Buffer
	cmd := newTapCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	cmd.SetArgs([]string{"--path", "/items", "--max", "2", "--kubeconfig", kubeconfig})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := cmd.ExecuteContext(ctx); err != nil || ctx.Err() != nil {
		t.Fatalf("%v, %v\n%s", err, ctx.Err(), warnings.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "shop/cart-0 <- shop/web") || !strings.Contains(lines[1], "shop/web-0 -> shop/cart") {
		t.Errorf("it shows %q", lines)
	}
}

// TestTapAfterRestart: what a sidecar logs after it has restarted is shown too.
func TestTapAfterRestart(t *testing.T) {
	kubeconfig := serveTapped(t, changes{restarted: "cart-0"})
	var out, warnings bytes.Buffer
	cmd := newTapCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	cmd.SetArgs([]string{"--from", "shop/web", "--max", "2", "--kubeconfig", kubeconfig})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := cmd.ExecuteContext(ctx); err != nil || ctx.Err() != nil {
		t.Fatalf("%v, %v\n%s", err, ctx.Err(), warnings.String())
	}
	if lines := strings.Count(out.String(), "shop/cart-0 <- shop/web GET cart/items"); lines != 2 {
		t.Errorf("it shows %q", out.String())
	}
}

// TestTapFails: an access log that cannot be read is an error, although the others are shown.
func TestTapFails(t *testing.T) {
	kubeconfig := serveTapped(t, changes{})
	log := tapped["cart-0"]
	tapped["cart-0"] = strings.Repeat("x", maxLine+1)
	t.Cleanup(func() { tapped["cart-0"] = log })
	var out, warnings bytes.Buffer
	cmd := newTapCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	cmd.SetArgs([]string{"--follow=false", "--kubeconfig", kubeconfig})
	err := cmd.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(warnings.String(), "the access log of pod shop/cart-0: ") || !strings.Contains(out.String(), "shop/web-0 -> shop/cart") {
		t.Errorf("the error is %v, the warnings are %s, and the output is %s", err, warnings.String(), out.String())
	}
}
