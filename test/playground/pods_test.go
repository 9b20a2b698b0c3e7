package playground

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// servePods serves two pods, and returns a client of theirs.
func servePods(t *testing.T, journals *Journals) typedv1.CoreV1Interface {
	t.Helper()
	var pods []corev1.Pod
	for i, name := range []string{"buyer", "store"} {
		pods = append(pods, running(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1", Labels: map[string]string{"app": name}},
			Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "outrigger-proxy"}}, Containers: []corev1.Container{{Name: "app"}}},
		}, []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}))
	}
	mux := http.NewServeMux()
	(&podsAPI{func() []corev1.Pod { return pods }, journals}).mount(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client.CoreV1()
}

func TestPods(t *testing.T) {
	client := servePods(t, NewJournals())
	names := func(namespace string, options metav1.ListOptions) string {
		list, err := client.Pods(namespace).List(t.Context(), options)
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, pod := range list.Items {
			out = append(out, fmt.Sprintf("%s %s %s", pod.Name, pod.Status.PodIP, pod.Status.Phase))
		}
		return strings.Join(out, ", ")
	}
	for _, tt := range []struct {
		namespace string
		options   metav1.ListOptions
		want      string
	}{
		{"", metav1.ListOptions{}, "buyer 10.0.0.0 Running, store 10.0.0.1 Running"},
		{"shop", metav1.ListOptions{LabelSelector: "app=store"}, "store 10.0.0.1 Running"},
		{"shop", metav1.ListOptions{FieldSelector: "status.podIP=10.0.0.0"}, "buyer 10.0.0.0 Running"},
		{"other", metav1.ListOptions{}, ""},
		{"shop", metav1.ListOptions{LabelSelector: "app in"}, "unable to parse requirement: found '' expected: '('"},
	} {
		if got := names(tt.namespace, tt.options); got != tt.want {
			t.Errorf("%s %+v: %s, want %s", tt.namespace, tt.options, got, tt.want)
		}
	}
	if pod, err := client.Pods("shop").Get(t.Context(), "store", metav1.GetOptions{}); err != nil || pod.Status.InitContainerStatuses[0].ContainerID == "" {
		t.Errorf("%+v, %v", pod, err)
	}
	if _, err := client.Pods("shop").Get(t.Context(), "thief", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that does not exist: %v", err)
	}
}

func TestLogs(t *testing.T) {
	journals := NewJournals()
	client := servePods(t, journals)
	proxy := journals.Writer("shop/store", "outrigger-proxy", io.Discard)
	fmt.Fprint(proxy, "one\ntwo\nthr")
	read := func(options corev1.PodLogOptions) string {
		stream, err := client.Pods("shop").GetLogs("store", &options).Stream(t.Context())
		if err != nil {
			return err.Error()
		}
		defer stream.Close()
		text, err := io.ReadAll(stream)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	for _, tt := range []struct {
		options corev1.PodLogOptions
		want    string
	}{
		{corev1.PodLogOptions{Container: "outrigger-proxy"}, "one\ntwo\n"},
		{corev1.PodLogOptions{Container: "outrigger-proxy", TailLines: new(int64(1))}, "two\n"},
		{corev1.PodLogOptions{Container: "outrigger-proxy", SinceSeconds: new(int64(3600))}, "one\ntwo\n"},
		{corev1.PodLogOptions{}, ""},
		{corev1.PodLogOptions{Container: "other"}, "container other is not valid for pod store"},
	} {
		if got := read(tt.options); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.options, got, tt.want)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := client.Pods("shop").GetLogs("store", &corev1.PodLogOptions{Container: "outrigger-proxy", Follow: true, TailLines: new(int64(0))}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	followed := bufio.NewScanner(stream)
	for _, want := range []string{"three", "four"} {
		fmt.Fprint(proxy, strings.TrimPrefix(want, "thr")+"\n")
		if !followed.Scan() || followed.Text() != want {
			t.Fatalf("%q, %v, want %q", followed.Text(), followed.Err(), want)
		}
	}
}

// TestJournalIsBounded checks that the latest lines are kept, and that who follows misses none
// of them.
func TestJournalIsBounded(t *testing.T) {
	j := NewJournals().get("shop/store", "app")
	for n := range maxJournal * 3 {
		j.add(fmt.Append(nil, n))
	}
	text, all, _ := j.from(0, time.Time{})
	if lines := strings.Fields(text); all != maxJournal*3 || len(lines) > maxJournal || len(lines) < maxJournal/2 || lines[len(lines)-1] != fmt.Sprint(all-1) {
		t.Errorf("%d of %d lines are kept, the last of which is %s", len(lines), all, lines[len(lines)-1])
	}
	j.add([]byte("next"))
	if text, _, _ := j.from(all, time.Time{}); text != "next\n" {
		t.Errorf("after them comes %q", text)
	}
}
