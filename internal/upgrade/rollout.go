package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/internal/page"
)

// Options are the settings of a Rollout. All but Log are required.
type Options struct {
	Client kubernetes.Interface
	// AtOnce is how many pods are upgraded at a time, but at most a quarter of those with the
	// same controller, such as a ReplicaSet.
	AtOnce int
	// Namespaces returns the namespaces of the mesh.
	Namespaces func(context.Context) ([]string, error)
	// Desired returns what an injected pod should have. It is called by one goroutine at a
	// time.
	Desired func(context.Context, *corev1.Pod) Target
	// Changed is closed, and replaced by another channel, when Desired may have changed.
	Changed func() <-chan struct{}
	// Stopped gets the rollouts that have stopped, whenever they may have changed.
	Stopped func([]Stop)
	Log     *slog.Logger
}

// Target is what a pod should have.
type Target struct {
	// Class is the class of its sidecar.
	Class string
	// Injected is the image with which the sidecar was injected, if it is known. The container's may
	// be another one, of a mirror for example.
	Injected string
	// Image is the image that the sidecar should have, or "" if it is not to be changed.
	Image string
}

// Stop is a rollout that has stopped because a pod could not be upgraded. It goes on once the
// pod is gone or the image is another one.
type Stop struct {
	Class, Image string
	// Only is the namespace in which it has stopped; empty if it has everywhere.
	Only string
	// Namespace, Pod and UID identify the pod, and Reason is a sentence.
	Namespace, Pod, UID, Reason string
}

// version is what the pods of a class should get.
type version struct{ class, image string }

// scope is where a version's rollout has stopped: in a namespace, or everywhere if it is empty.
type scope struct {
	version
	namespace string
}

// Rollout upgrades the proxies of running pods to the images that they should have. What it
// has done is in the pods, so another process can go on with it.
type Rollout struct {
	options Options
	metrics *Metrics
	// known has what is known of the pods by their UID.
	known map[string]known
	// fresh is until when their targets are used.
	fresh time.Time
}

// known is what is known of a pod.
type known struct {
	target Target
	// since is when the pod was first seen to be upgraded, or zero.
	since time.Time
}

// Metrics are the metrics of rollouts.
type Metrics struct{ pods *prometheus.GaugeVec }

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: metric.UpgradePods,
		Help: "Pods by their sidecar class and by whether their proxy has the image that it should have.",
	}, []string{metric.LabelClass, metric.LabelState})}
	registry.MustRegister(m.pods)
	return m
}

// New returns a Rollout.
func New(options Options, metrics *Metrics) *Rollout {
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	return &Rollout{options: options, metrics: metrics}
}

// NeedLeaderElection is for managers of controller-runtime.
func (r *Rollout) NeedLeaderElection() bool { return true }

const (
	// interval is the time between two looks at the pods while some are being upgraded,
	// stoppedInterval while a rollout has stopped, and idleInterval at other times, for pods that
	// were not ready before.
	interval        = 10 * time.Second
	stoppedInterval = time.Minute
	idleInterval    = 5 * time.Minute
	// refresh is how long the targets of pods are used: annotations and templates may change.
	refresh = time.Minute
)

// Start upgrades pods until ctx ends.
func (r *Rollout) Start(ctx context.Context) error {
	defer r.metrics.pods.Reset()
	for {
		changed := r.options.Changed()
		next, err := r.pass(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			r.options.Log.Error("the proxies of running pods were not looked at", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			r.fresh = time.Time{}
		case <-time.After(next):
		}
	}
}

// candidate is a pod and its place in the rollout.
type candidate struct {
	namespace, name, uid string
	// owner is the UID of the pod's controller, or of the pod.
	owner   string
	version version
	phase   phase
	reason  string
}

// pass looks at all pods of the mesh, and begins to upgrade some. It returns when to look
// again.
func (r *Rollout) pass(ctx context.Context, now time.Time) (time.Duration, error) {
	all, err := r.candidates(ctx, now)
	if err != nil {
		return interval, err
	}
	stops := make(map[scope]Stop)
	counts := make(map[string]map[phase]int)
	pods, busy := make(map[string]int), make(map[string]int)
	free, next := r.options.AtOnce, idleInterval
	for i := range all {
		c := &all[i]
		if counts[c.version.class] == nil {
			counts[c.version.class] = make(map[phase]int)
		}
		counts[c.version.class][c.phase]++
		pods[c.owner]++
		switch c.phase {
		case upgrading:
			free--
			busy[c.owner]++
			next = interval
		case failed:
			next = min(next, stoppedInterval)
			c.stop(stops, "", c.reason)
		}
	}
	var errs []error
	for i := range all {
		c := &all[i]
		if c.phase != outdated || c.stopped(stops) {
			continue
		}
		next = interval
		if free <= 0 {
			break
		}
		if busy[c.owner] >= max(1, pods[c.owner]/4) {
			continue
		}
		// Failures count too, so that there are never more requests than pods at a time.
		free--
		busy[c.owner]++
		switch err := r.upgrade(ctx, c, now); {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			// The policy is usually the namespace's. Nothing was changed, so others get its
			// place; the namespace has no other request in this pass.
			c.stop(stops, c.namespace, fmt.Sprintf("the API server refuses the container: %v", err))
			free++
			busy[c.owner]--
		case err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			errs = append(errs, err)
		}
	}
	r.metrics.set(counts)
	r.options.Stopped(slices.SortedFunc(maps.Values(stops), func(a, b Stop) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Image, b.Image), cmp.Compare(a.Only, b.Only))
	}))
	return next, errors.Join(errs...)
}

// stop adds the stop of the rollout of the pod's version in a namespace, or everywhere if it is
// empty, unless there is one.
func (c *candidate) stop(stops map[scope]Stop, namespace, reason string) {
	at := scope{c.version, namespace}
	if _, ok := stops[at]; !ok {
		stops[at] = Stop{c.version.class, c.version.image, namespace, c.namespace, c.name, c.uid, reason}
	}
}

// stopped reports whether the rollout of the pod's version has stopped there or everywhere.
func (c *candidate) stopped(stops map[scope]Stop) bool {
	_, everywhere := stops[scope{version: c.version}]
	_, here := stops[scope{c.version, c.namespace}]
	return everywhere || here
}

// candidates returns the injected, running pods of the mesh, sorted by namespace and name.
func (r *Rollout) candidates(ctx context.Context, now time.Time) ([]candidate, error) {
	namespaces, err := r.options.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(namespaces)
	isFresh := now.Before(r.fresh)
	if !isFresh {
		r.fresh = now.Add(refresh)
	}
	seen := make(map[string]known)
	var all []candidate
	for _, namespace := range namespaces {
		err := page.Each(ctx, r.options.Client.CoreV1().Pods(namespace).List, metav1.ListOptions{}, func(pod *corev1.Pod) error {
			if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || sidecarOf(pod) == nil {
				return nil
			}
			k, ok := r.known[string(pod.UID)]
			if !ok || !isFresh {
				k.target = r.options.Desired(ctx, pod)
			}
			if k.target.Image != "" {
				all = append(all, newCandidate(pod, &k, now))
			}
			seen[string(pod.UID)] = k
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("listing the pods of namespace %s: %w", namespace, err)
		}
	}
	r.known = seen
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	return all, nil
}

// newCandidate notes in k since when the pod is upgraded.
func newCandidate(pod *corev1.Pod, k *known, now time.Time) candidate {
	c := candidate{
		namespace: pod.Namespace, name: pod.Name, uid: string(pod.UID), owner: string(pod.UID),
		version: version{k.target.Class, k.target.Image},
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		c.owner = string(owner.UID)
	}
	c.phase, c.reason = stateOf(pod, k.target, now)
	switch {
	case c.phase != upgrading:
		k.since = time.Time{}
	case k.since.IsZero():
		k.since = now
	case now.Sub(k.since) > patience:
		// It is the node's problem rather than the image's.
		c.phase, c.reason = waiting, fmt.Sprintf("the added container has not started within %v", patience)
	}
	return c
}

// upgrade adds the container with the new image to a pod, unless the pod has changed so that it is
// not to be upgraded any more.
func (r *Rollout) upgrade(ctx context.Context, c *candidate, now time.Time) error {
	pods := r.options.Client.CoreV1().Pods(c.namespace)
	pod, err := pods.Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("upgrading the proxy of pod %s/%s: %w", c.namespace, c.name, err)
	}
	t := r.options.Desired(ctx, pod)
	if p, _ := stateOf(pod, t, now); string(pod.UID) != c.uid || t.Class != c.version.class || t.Image != c.version.image || p != outdated {
		r.fresh = time.Time{}
		return nil
	}
	added, err := Container(pod, t.Image)
	if err != nil {
		return fmt.Errorf("upgrading the proxy of pod %s/%s: %w", c.namespace, c.name, err)
	}
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, *added)
	if _, err := pods.UpdateEphemeralContainers(ctx, c.name, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("upgrading the proxy of pod %s/%s: %w", c.namespace, c.name, err)
	}
	r.options.Log.Info("upgrading the proxy of a running pod", "namespace", c.namespace, "pod", c.name, "class", t.Class, "image", t.Image, "container", added.Name)
	return nil
}

// set replaces the metrics.
func (m *Metrics) set(counts map[string]map[phase]int) {
	m.pods.Reset()
	for class, of := range counts {
		for _, p := range phases {
			m.pods.WithLabelValues(class, string(p)).Set(float64(of[p]))
		}
	}
}
