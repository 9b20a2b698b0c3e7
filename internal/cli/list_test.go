package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// pagingServer is an API server with namespaces of the mesh that have pods. It returns one
// object for each request of a list that has a limit, and all objects if there is no limit.
type pagingServer struct {
	namespaces []string
	pods       int

	mu sync.Mutex
	// unlimited are the requests without a limit.
	unlimited []string
}

// ServeHTTP implements http.Handler.
func (s *pagingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	switch namespace, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/"); {
	case namespace == "pods":
		answer = onePage(s, r, "PodList", s.podsOf(s.namespaces...))
	case rest == "":
		var all []corev1.Namespace
		for _, name := range s.namespaces {
			all = append(all, s.namespace(name))
		}
		answer = onePage(s, r, "NamespaceList", all)
	case rest == "osm-system/pods":
		answer = onePage(s, r, "PodList", []corev1.Pod{})
	case strings.HasSuffix(rest, "/pods"):
		answer = onePage(s, r, "PodList", s.podsOf(strings.TrimSuffix(rest, "/pods")))
	default:
		answer = s.namespace(rest)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *pagingServer) namespace(name string) corev1.Namespace {
	return corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{metadata.MonitoredBy: "osm"}},
	}
}

// podsOf returns the pods of namespaces: all have an agent, and the first of each has no
// sidecar.
func (s *pagingServer) podsOf(namespaces ...string) []corev1.Pod {
	var all []corev1.Pod
	for _, namespace := range namespaces {
		for i := range s.pods {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("web-%d", i)}}
			pod.Spec.InitContainers = []corev1.Container{{Name: driver.InitContainer, Image: "outrigger-init:0.2.0"}}
			if i > 0 {
				pod.Annotations = map[string]string{inject.StatusAnnotation: "{}"}
			}
			all = append(all, pod)
		}
	}
	return all
}

func onePage[T any](s *pagingServer, r *http.Request, kind string, all []T) any {
	query, metadata := r.URL.Query(), map[string]any{}
	if query.Get("limit") == "" {
		s.mu.Lock()
		s.unlimited = append(s.unlimited, r.URL.String())
		s.mu.Unlock()
	} else if len(all) > 0 {
		at, _ := strconv.Atoi(query.Get("continue"))
		if at+1 < len(all) {
			metadata["continue"] = strconv.Itoa(at + 1)
		}
		all = all[at : at+1]
	}
	return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": metadata, "items": slices.Clip(all)}
}

// TestListsInPages checks that commands request lists in pages and use all pages, as a mesh
// may have thousands of pods.
func TestListsInPages(t *testing.T) {
	for args, want := range map[string][]string{
		"namespace list":        {"cart osm by policy 4 1", "shop osm by policy 4 1", "store osm by policy 4 1"},
		"namespace add shop":    {"pod/web-0: 1 running without a sidecar"},
		"namespace remove shop": {"pod/web-4: 1 running with a sidecar"},
		"version":               {"Data plane 0.2.0 12 pods"},
	} {
		t.Run(args, func(t *testing.T) {
			api := &pagingServer{namespaces: []string{"cart", "shop", "store"}, pods: 5}
			server := httptest.NewServer(api)
			defer server.Close()
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			text := fmt.Sprintf("{clusters: [{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}", server.URL)
			if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("KUBECONFIG", kubeconfig)
			var out bytes.Buffer
			cmd := NewRootCommand()
			cmd.SetArgs(strings.Fields(args))
			cmd.SetOut(&out)
			cmd.SetErr(t.Output())
			// 'version' fails, because no pod of the control plane is running.
			_ = cmd.ExecuteContext(t.Context())
			printed := strings.Join(strings.Fields(out.String()), " ")
			for _, text := range want {
				if !strings.Contains(printed, text) {
					t.Errorf("outrigger %s prints %q, want %q", args, printed, text)
				}
			}
			if len(api.unlimited) > 0 {
				t.Errorf("outrigger %s requests all objects at once: %v", args, api.unlimited)
			}
		})
	}
}
