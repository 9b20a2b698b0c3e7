package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func startMissingContext(s subject) error {
	err := s.call("Start", func() error {
		_, err := s.driver.Start(context.Background())
		return err
	})
	return wantText(err, "missing Controller Context")
}

func patchMissingContext(s subject) error {
	return wantText(s.call("Patch", func() error { return s.driver.Patch(context.Background()) }), "missing Injector Context")
}

func wantText(err error, text string) error {
	switch {
	case err == nil:
		return fmt.Errorf("called with context.Background() it returned no error, want %q", text)
	case !strings.Contains(err.Error(), text):
		return fmt.Errorf("called with context.Background() it returned the error %q, want %q", err, text)
	}
	return nil
}

func patchCancelled(s subject) error {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	var errs []error
	for _, in := range []struct {
		name string
		ctx  func(*driver.InjectorContext) (context.Context, context.CancelFunc)
	}{
		{"the InjectorContext is cancelled", func(inj *driver.InjectorContext) (context.Context, context.CancelFunc) {
			inj.Context = cancelled
			return context.WithCancel(inj)
		}},
		{"the ctx derived from the InjectorContext is cancelled", func(inj *driver.InjectorContext) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(inj)
			cancel()
			return ctx, cancel
		}},
		{"the deadline has passed", func(inj *driver.InjectorContext) (context.Context, context.CancelFunc) {
			return context.WithDeadline(inj, time.Unix(0, 0))
		}},
	} {
		ctx, cancel := in.ctx(situation{pod: plainPod()}.context())
		err := s.call("Patch", func() error {
			if err := s.driver.Patch(ctx); err == nil {
				return errNoError
			}
			return nil
		})
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", in.name, err))
		}
	}
	return errors.Join(errs...)
}

var errNoError = errors.New("it returned no error")

func patchIdempotent(s subject) error {
	return s.each(situations(), func(inj *driver.InjectorContext, _, after *corev1.Pod) error {
		var errs []error
		for _, again := range []struct {
			name string
			pod  *corev1.Pod
		}{
			{"a second Patch", after.DeepCopy()},
			{"a second Patch after the API server's defaults", withDefaults(after)},
		} {
			second := *inj
			second.Pod = again.pod.DeepCopy()
			got, err := s.patch(&second)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", again.name, err))
			} else if !equality.Semantic.DeepEqual(again.pod, got) {
				errs = append(errs, fmt.Errorf("%s changed the pod (- first, + second):\n%s", again.name, cmp.Diff(tree(again.pod), tree(got))))
			}
		}
		return errors.Join(errs...)
	})
}

func patchDeterministic(s subject) error {
	const runs, goroutines = 100, 8
	var errs []error
	for _, in := range []situation{forms("pod with everything", richPod())[0], forms("Windows pod", windowsPod())[1]} {
		first, err := s.patch(in.context())
		if err != nil {
			return fmt.Errorf("%s: %w", in.name, err)
		}
		want := toJSON(first)
		same := func() error {
			got, err := s.patch(in.context())
			if err != nil {
				return err
			}
			if toJSON(got) != want {
				return fmt.Errorf("another run gave another pod (- first, + other):\n%s", cmp.Diff(tree(first), tree(got)))
			}
			return nil
		}
		for range runs {
			if err = same(); err != nil {
				break
			}
		}
		if err == nil {
			err = concurrently(goroutines, func() error {
				for range runs / goroutines {
					if err := same(); err != nil {
						return fmt.Errorf("from %d goroutines at once: %w", goroutines, err)
					}
				}
				return nil
			})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", in.name, err))
		}
	}
	return errors.Join(errs...)
}

// concurrently calls f from n goroutines and returns the first error.
func concurrently(n int, f func() error) error {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for range n {
		wg.Go(func() {
			if err := f(); err != nil {
				once.Do(func() { first = err })
			}
		})
	}
	wg.Wait()
	return first
}

func patchOffline(s subject) error {
	all := situations()
	for i := range all {
		change := all[i].change
		all[i].change = func(inj *driver.InjectorContext) {
			if change != nil {
				change(inj)
			}
			inj.KubeClient, inj.ProxyUUID, inj.ProxyCommonName = nil, uuid.Nil, ""
			inj.BootstrapCertificate.TrustBundle = nil
		}
	}
	return s.each(all, wantSidecar)
}

// wantSidecar returns an error if no container was added.
func wantSidecar(_ *driver.InjectorContext, before, after *corev1.Pod) error {
	if len(addedContainers(before, after)) == 0 {
		return errors.New("no container was added")
	}
	return nil
}

func patchNoSideEffects(s subject) error {
	var errs []error
	for _, in := range situations() {
		var pods []*corev1.Pod
		for _, dryRun := range []bool{false, true} {
			cluster := &readOnly{}
			client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://cluster.invalid"}, &http.Client{Transport: cluster})
			if err != nil {
				return fmt.Errorf("making a client: %w", err)
			}
			arguments := func() *driver.InjectorContext {
				inj := in.context()
				inj.DryRun = dryRun
				return inj
			}
			inj := arguments()
			inj.KubeClient = client
			pod, err := s.patch(inj)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s, DryRun %t: %w", in.name, dryRun, err))
				continue
			}
			pods = append(pods, pod)
			if writes := cluster.writes(); writes != nil {
				errs = append(errs, fmt.Errorf("%s, DryRun %t: Patch wrote to the cluster: %q", in.name, dryRun, writes))
			}
			inj.KubeClient = nil
			for _, field := range changedArguments(arguments(), inj) {
				errs = append(errs, fmt.Errorf("%s, DryRun %t: Patch changed InjectorContext.%s", in.name, dryRun, field))
			}
		}
		if len(pods) == 2 && !equality.Semantic.DeepEqual(pods[0], pods[1]) {
			errs = append(errs, fmt.Errorf("%s: a dry run gives another pod (- real, + dry):\n%s", in.name, cmp.Diff(tree(pods[0]), tree(pods[1]))))
		}
	}
	return errors.Join(errs...)
}

// changedArguments returns the names of the fields that differ, except for Pod.
func changedArguments(before, after *driver.InjectorContext) []string {
	var names []string
	b, a := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range b.NumField() {
		name := b.Type().Field(i).Name
		if name != "Pod" && !reflect.DeepEqual(b.Field(i).Interface(), a.Field(i).Interface()) {
			names = append(names, name)
		}
	}
	return names
}

// readOnly is an API server that finds nothing and records all other requests.
type readOnly struct {
	mu      sync.Mutex
	refused []string
}

func (r *readOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	status, reason := http.StatusNotFound, "NotFound"
	if req.Method != http.MethodGet {
		status, reason = http.StatusForbidden, "Forbidden"
		r.mu.Lock()
		r.refused = append(r.refused, req.Method+" "+req.URL.Path)
		r.mu.Unlock()
	}
	body := fmt.Appendf(nil, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, status)
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: req,
	}, nil
}

func (r *readOnly) writes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

func patchHuge(s subject) error {
	s.limit = min(s.limit, time.Second)
	return s.each(forms("pod with 2,000 env vars", hugePod(2000)), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		return errors.Join(kept(before, after)...)
	})
}

func patchTemplate(s subject) error {
	templater, ok := s.driver.(driver.Templater)
	if !ok {
		return nil
	}
	if text := templater.PodTemplate(); text == "" || text != templater.PodTemplate() {
		return errors.New("PodTemplate is empty or not constant")
	}
	own := &ownTemplates{}
	inj := situation{pod: plainPod()}.context()
	inj.Templates = own
	if _, err := s.patch(inj); !errors.Is(err, errOwn) {
		return fmt.Errorf("the user's template returned an error, but Patch returned %v, want that error", err)
	}
	return nil
}

// ownTemplates has every template, and each returns errOwn.
type ownTemplates struct{}

var errOwn = errors.New("the user's template was used")

func (*ownTemplates) Has(string) bool { return true }

func (*ownTemplates) Apply(*driver.InjectorContext, string, *agentspec.Spec) error { return errOwn }
