package playground

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// podsAPI answers as an API server would that knows only pods: it lists and gets them, and
// shows their logs. By it the commands that read access logs work without a cluster.
type podsAPI struct {
	// list returns the running pods.
	list     func() []corev1.Pod
	journals *Journals
}

func (a *podsAPI) mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/pods", a.all)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", a.all)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", a.one)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}/log", a.log)
}

func (a *podsAPI) all(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	byField, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{}}
	for _, pod := range a.list() {
		if namespace := r.PathValue("namespace"); namespace != "" && namespace != pod.Namespace {
			continue
		}
		of := fields.Set{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "status.podIP": pod.Status.PodIP, "status.phase": string(pod.Status.Phase)}
		if byLabel.Matches(labels.Set(pod.Labels)) && byField.Matches(of) {
			list.Items = append(list.Items, pod)
		}
	}
	answer(w, http.StatusOK, list)
}

func (a *podsAPI) one(w http.ResponseWriter, r *http.Request) {
	if pod, ok := a.find(w, r); ok {
		answer(w, http.StatusOK, pod)
	}
}

// find returns the pod of a request. Without one it answers.
func (a *podsAPI) find(w http.ResponseWriter, r *http.Request) (corev1.Pod, bool) {
	for _, pod := range a.list() {
		if pod.Namespace == r.PathValue("namespace") && pod.Name == r.PathValue("name") {
			return pod, true
		}
	}
	refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, r.PathValue("name")))
	return corev1.Pod{}, false
}

func (a *podsAPI) log(w http.ResponseWriter, r *http.Request) {
	pod, ok := a.find(w, r)
	if !ok {
		return
	}
	query := r.URL.Query()
	container := query.Get("container")
	if container == "" {
		container = pod.Spec.Containers[0].Name
	}
	if !hasContainer(&pod, container) {
		refuse(w, apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", container, pod.Name)))
		return
	}
	journal := a.journals.get(pod.Namespace+"/"+pod.Name, container)
	var since time.Time
	if seconds, err := strconv.ParseInt(query.Get("sinceSeconds"), 10, 64); err == nil {
		since = time.Now().Add(-time.Duration(seconds) * time.Second)
	}
	skip := 0
	if tail, err := strconv.Atoi(query.Get("tailLines")); err == nil && tail >= 0 {
		_, all, _ := journal.from(0, since)
		skip = max(all-tail, 0)
	}
	w.Header().Set("Content-Type", "text/plain")
	for {
		text, all, changed := journal.from(skip, since)
		if _, err := io.WriteString(w, text); err != nil || query.Get("follow") != "true" {
			return
		}
		if flusher, ok := w.(http.Flusher); ok {
			flusher.Flush()
		}
		skip = all
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func hasContainer(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	return false
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	answer(w, int(status.Code), status)
}

// runningPods returns the pods of the mesh with the status of a pod that runs.
func (w *Window) runningPods() []corev1.Pod {
	var pods []corev1.Pod
	for _, name := range w.Mesh.Pods() {
		if p := w.Mesh.Pod(name); p != nil {
			pods = append(pods, running(p.Object(), p.Addresses()))
		}
	}
	return pods
}

func running(pod *corev1.Pod, addresses []netip.Addr) corev1.Pod {
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Status.Phase = corev1.PodRunning
	for _, address := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address.String()})
	}
	if len(pod.Status.PodIPs) > 0 {
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
	}
	statuses := func(containers []corev1.Container) (out []corev1.ContainerStatus) {
		for _, c := range containers {
			out = append(out, corev1.ContainerStatus{Name: c.Name, ContainerID: "lab://" + string(pod.UID) + "/" + c.Name, Image: c.Image, Ready: true})
		}
		return out
	}
	pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = statuses(pod.Spec.InitContainers), statuses(pod.Spec.Containers)
	return *pod
}
