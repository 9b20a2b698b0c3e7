package upgrade

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestRolloutRefusedInOneNamespace has the API server forbid the container in two namespaces,
// which come first. The third is upgraded nevertheless.
func TestRolloutRefusedInOneNamespace(t *testing.T) {
	pods := map[string]*corev1.Pod{}
	for _, namespace := range []string{"a-locked", "b-locked", "c-open"} {
		for _, name := range []string{"one", "two"} {
			pod := newPod(t)
			pod.Namespace, pod.Name, pod.UID = namespace, name, types.UID("uid-"+namespace+"-"+name)
			pods[namespace+"/"+name] = pod
		}
	}
	var mu sync.Mutex
	var requests []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/")
		namespace := parts[0]
		switch {
		case len(parts) == 2:
			list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
			for _, name := range []string{"one", "two"} {
				list.Items = append(list.Items, *pods[namespace+"/"+name])
			}
			json.NewEncoder(w).Encode(list)
		case r.Method == http.MethodPut:
			mu.Lock()
			requests = append(requests, namespace+"/"+parts[2])
			mu.Unlock()
			if strings.HasSuffix(namespace, "-locked") {
				w.WriteHeader(http.StatusForbidden)
				json.NewEncoder(w).Encode(metav1.Status{
					TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
					Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "no such container here",
				})
				return
			}
			fallthrough
		default:
			json.NewEncoder(w).Encode(pods[namespace+"/"+parts[2]])
		}
	}))
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	var stops []Stop
	rollout := New(Options{
		Client: client, AtOnce: 1,
		Namespaces: func(context.Context) ([]string, error) { return []string{"a-locked", "b-locked", "c-open"}, nil },
		Desired:    func(context.Context, *corev1.Pod) Target { return Target{Class: "envoy", Image: "proxy:2"} },
		Stopped:    func(s []Stop) { stops = s },
	}, NewMetrics(prometheus.NewRegistry()))
	if _, err := rollout.pass(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a-locked/one", "b-locked/one", "c-open/one"}; !slices.Equal(requests, want) {
		t.Errorf("containers are added to %v, want %v", requests, want)
	}
	if len(stops) != 2 || stops[0].Only != "a-locked" || stops[1].Only != "b-locked" {
		t.Errorf("the rollout has stopped for %+v, want the two namespaces", stops)
	}
}
