package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	configv1alpha2 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// subject is the driver under test.
type subject struct {
	driver driver.Driver
	// limit is the time limit of one call.
	limit time.Duration
	// t is for rules that need a test; may be nil.
	t *testing.T
}

// call calls f and turns panics and timeouts into errors. After a timeout the call is
// abandoned.
func (s subject) call(what string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- fmt.Errorf("%s panicked: %v\n%s", what, v, debug.Stack())
			}
		}()
		done <- f()
	}()
	timer := time.NewTimer(s.limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%s has not returned after %v", what, s.limit)
	}
}

// patch calls Patch for inj and returns the patched pod, which is inj.Pod.
func (s subject) patch(inj *driver.InjectorContext) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(inj, s.limit)
	defer cancel()
	err := s.call("Patch", func() error { return s.driver.Patch(ctx) })
	if err != nil {
		return nil, fmt.Errorf("patching: %w", err)
	}
	return inj.Pod, nil
}

// each patches the pod of every situation and returns the joined errors of check.
func (s subject) each(situations []situation, check func(inj *driver.InjectorContext, before, after *corev1.Pod) error) error {
	var errs []error
	for _, in := range situations {
		inj := in.context()
		before := inj.Pod.DeepCopy()
		after, err := s.patch(inj)
		if err == nil {
			err = check(inj, before, after)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", in.name, err))
		}
	}
	return errors.Join(errs...)
}

// situation is a pod with a configuration of its sidecar.
type situation struct {
	name string
	pod  *corev1.Pod
	// change adapts the arguments, if set.
	change func(*driver.InjectorContext)
}

// situations returns every pod with every form of sidecar.
func situations() []situation {
	var all []situation
	for _, p := range []situation{
		{name: "plain pod", pod: plainPod()},
		{name: "pod with nothing but a container", pod: barePod()},
		{name: "pod with everything", pod: richPod()},
		{name: "Windows pod", pod: windowsPod()},
	} {
		all = append(all, forms(p.name, p.pod)...)
	}
	return all
}

// forms returns the pod with each form of sidecar.
func forms(name string, pod *corev1.Pod) []situation {
	return []situation{
		{name + ", native", pod, func(inj *driver.InjectorContext) { inj.Sidecar.Native = true }},
		{name + ", classic", pod, nil},
		{name + ", classic that holds the app", pod, func(inj *driver.InjectorContext) { inj.Sidecar.HoldApplication = true }},
		{name + ", native with a privileged init container", pod, func(inj *driver.InjectorContext) {
			inj.Sidecar.Native, inj.Sidecar.PrivilegedInit = true, true
		}},
		{name + ", native on nodes with the CNI plug-in", pod, func(inj *driver.InjectorContext) {
			inj.Sidecar.Native, inj.Sidecar.CNI = true, true
		}},
	}
}

// context returns new arguments for the situation.
func (s situation) context() *driver.InjectorContext {
	cpu := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
	}
	inj := &driver.InjectorContext{
		Context:         context.Background(),
		Pod:             s.pod.DeepCopy(),
		MeshName:        "osm",
		OsmNamespace:    "osm-system",
		PodNamespace:    "shop",
		PodOS:           "linux",
		ProxyCommonName: "00000000-0000-4000-8000-000000000001.sidecar.cart.shop",
		ProxyUUID:       uuid.MustParse("00000000-0000-4000-8000-000000000001"),
		Configurator:    configuration{},
		BootstrapCertificate: &certificate.Certificate{
			CommonName:  "cart.shop",
			URI:         "spiffe://cluster.local/ns/shop/sa/cart",
			DNSNames:    []string{"cart.shop.sa.cluster.local"},
			TrustBundle: []byte("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"),
		},
		ContainerPullPolicy:          corev1.PullIfNotPresent,
		InboundPortExclusionList:     []int{9100},
		OutboundPortExclusionList:    []int{3306, 5432},
		OutboundIPRangeInclusionList: []string{"10.0.0.0/8"},
		OutboundIPRangeExclusionList: []string{"10.1.0.0/16"},
		OriginalHealthProbes: map[string]driver.HealthProbes{
			"web": {Readiness: &driver.HealthProbe{Path: "/readyz", Port: 8080, HTTP: true, Scheme: "HTTP", Timeout: time.Second}},
		},
		Sidecar: driver.Sidecar{
			Class: "conformance", Image: "example.com/proxy:1", InitImage: "example.com/init:1", LogLevel: "error",
			Resources: corev1.ResourceRequirements{Requests: cpu("50m"), Limits: cpu("1")},
		},
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"},
		Redirection: agentspec.Redirection{
			ExcludeInboundPorts: []int{9100}, ExcludeOutboundPorts: []int{3306, 5432},
			ExcludeOutboundRanges: []string{"10.1.0.0/16"}, IncludeOutboundRanges: []string{"10.0.0.0/8"},
		},
		AppProbes: []agentspec.Probe{{
			Path: "/app-health/web/readyz", Kind: agentspec.HTTP, Port: 8080, Scheme: "HTTP", URL: "/readyz?a=$(b)&c=$$",
			Headers: []agentspec.Header{{Name: "X-Probe", Value: "1"}}, TimeoutSeconds: 1,
		}},
	}
	if inj.Pod.Spec.OS != nil {
		inj.PodOS = string(inj.Pod.Spec.OS.Name)
	}
	if inj.PodOS == "windows" {
		inj.Redirection, inj.AppProbes, inj.OriginalHealthProbes = agentspec.Redirection{}, nil, nil
	}
	if s.change != nil {
		s.change(inj)
	}
	return inj
}

// configuration is a Configurator with defaults only.
type configuration struct{}

var _ driver.Configurator = configuration{}

func (configuration) GetMeshConfig() *configv1alpha2.MeshConfig   { return &configv1alpha2.MeshConfig{} }
func (configuration) GetSidecarClass() string                     { return "conformance" }
func (configuration) GetSidecarImage(string) string               { return "example.com/proxy:1" }
func (configuration) GetSidecarWindowsImage(string) string        { return "example.com/proxy:1-windows" }
func (configuration) GetInitContainerImage(string) string         { return "example.com/init:1" }
func (configuration) GetProxyServerPort(string) uint32            { return driver.ADSPort }
func (configuration) IsMTLSDisabled(string) bool                  { return false }
func (configuration) IsPrivilegedInitContainer() bool             { return false }
func (configuration) GetSidecarLogLevel() string                  { return "error" }
func (configuration) GetMaxDataPlaneConnections() int             { return 0 }
func (configuration) GetConfigResyncInterval() time.Duration      { return 0 }
func (configuration) GetTrustDomain() string                      { return "cluster.local" }
func (configuration) GetServiceCertValidityPeriod() time.Duration { return 24 * time.Hour }
func (configuration) IsDebugServerEnabled() bool                  { return false }

// added returns the containers and volumes of after whose names before lacks.
func added(before, after *corev1.Pod) (inits, containers []corev1.Container, volumes []corev1.Volume) {
	had, hadVolume := make(map[string]bool), make(map[string]bool)
	for _, c := range allContainers(before) {
		had[c.Name] = true
	}
	for _, v := range before.Spec.Volumes {
		hadVolume[v.Name] = true
	}
	old := func(c corev1.Container) bool { return had[c.Name] }
	return slices.DeleteFunc(slices.Clone(after.Spec.InitContainers), old), slices.DeleteFunc(slices.Clone(after.Spec.Containers), old),
		slices.DeleteFunc(slices.Clone(after.Spec.Volumes), func(v corev1.Volume) bool { return hadVolume[v.Name] })
}

// allContainers returns the pod's init containers and its containers.
func allContainers(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

// addedContainers returns all added containers, init containers first.
func addedContainers(before, after *corev1.Pod) []corev1.Container {
	inits, containers, _ := added(before, after)
	return append(inits, containers...)
}

// isNative reports whether an init container is a native sidecar.
func isNative(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// toJSON returns v as JSON, for comparisons and messages.
func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tree returns the JSON value of v as maps, slices and scalars.
func tree(v any) any {
	var t any
	if err := json.Unmarshal([]byte(toJSON(v)), &t); err != nil {
		return err.Error()
	}
	return t
}
