package inject

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// istioSettings are the settings in a pod's Istio annotations.
type istioSettings struct {
	// equal holds the values of annotations that are equivalent to one of this mesh,
	// by this mesh's key.
	equal map[string]found
	// volumes and mounts are added to the sidecar.
	volumes []corev1.Volume
	mounts  []corev1.VolumeMount
	// warnings name the annotations that are ignored.
	warnings []Warning
}

const (
	istioProxyConfig      = "proxy.istio.io/config"
	istioInterceptionMode = "sidecar.istio.io/interceptionMode"
	istioUserVolume       = "sidecar.istio.io/userVolume"
	istioUserVolumeMount  = "sidecar.istio.io/userVolumeMount"
)

// istioEqual maps annotations of Istio to the equivalent ones of this mesh.
var istioEqual = map[string]string{
	"sidecar.istio.io/logLevel":                   metadata.LogLevel,
	"sidecar.istio.io/nativeSidecar":              metadata.NativeSidecar,
	"sidecar.istio.io/rewriteAppHTTPProbers":      metadata.RewriteProbes,
	"sidecar.istio.io/proxyCPU":                   metadata.RequestPrefix + "cpu",
	"sidecar.istio.io/proxyMemory":                metadata.RequestPrefix + "memory",
	"sidecar.istio.io/proxyEphemeralStorage":      metadata.RequestPrefix + "ephemeral-storage",
	"sidecar.istio.io/proxyCPULimit":              metadata.LimitPrefix + "cpu",
	"sidecar.istio.io/proxyMemoryLimit":           metadata.LimitPrefix + "memory",
	"sidecar.istio.io/proxyEphemeralStorageLimit": metadata.LimitPrefix + "ephemeral-storage",
	"inject.istio.io/templates":                   metadata.Templates,
}

// istioRead are the annotations of Istio that other functions read.
var istioRead = []string{
	istioInject,
	istioTrafficPrefix + "includeInboundPorts", istioTrafficPrefix + "excludeInboundPorts",
	istioTrafficPrefix + "includeOutboundPorts", istioTrafficPrefix + "excludeOutboundPorts",
	istioTrafficPrefix + "includeOutboundIPRanges", istioTrafficPrefix + "excludeOutboundIPRanges",
	istioTrafficPrefix + "excludeInterfaces",
}

// readIstio reads the Istio annotations of a pod. The error names an annotation whose
// value is invalid.
func readIstio(pod *corev1.Pod) (istioSettings, error) {
	s := istioSettings{equal: make(map[string]found)}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		domain, _, _ := strings.Cut(key, "/")
		if domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") || slices.Contains(istioRead, key) {
			continue
		}
		f := found{pod.Annotations[key], podAnnotation(key), true}
		if ours, ok := istioEqual[key]; ok {
			s.equal[ours] = f
			continue
		}
		var err error
		switch key {
		case istioProxyConfig:
			err = s.proxyConfig(f)
		case istioInterceptionMode:
			err = s.interceptionMode(f)
		case istioUserVolume:
			s.volumes, err = named(f, func(v *corev1.Volume) *string { return &v.Name })
		case istioUserVolumeMount:
			s.mounts, err = named(f, func(m *corev1.VolumeMount) *string { return &m.Name })
		default:
			s.ignored(key, "it has no meaning here")
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *istioSettings) ignored(what, why string) {
	s.warnings = append(s.warnings, Warning{"istio_annotation_ignored", what + " is ignored: " + why})
}

func (s *istioSettings) interceptionMode(f found) error {
	switch strings.ToUpper(f.value) {
	case "REDIRECT":
		f.value = "iptables"
	case "NONE":
		f.value = "none"
	case "TPROXY":
		f.value = "iptables"
		s.ignored(istioInterceptionMode+": TPROXY", "the pod's traffic is redirected as with REDIRECT")
	default:
		return f.errorf("%q must be REDIRECT, TPROXY or NONE", f.value)
	}
	s.equal[metadata.InterceptionMode] = f
	return nil
}

// proxyConfig reads the fields of a ProxyConfig that this mesh supports.
func (s *istioSettings) proxyConfig(f found) error {
	if len(f.value) > maxAnnotation {
		return f.errorf("it is longer than %d bytes", maxAnnotation)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(f.value), &config); err != nil {
		return f.errorf("it is not a YAML mapping: %v", err)
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		field := found{fmt.Sprint(config[key]), origin{f.from.String(), ": ", key}, true}
		switch key {
		case "concurrency":
			s.equal[metadata.Concurrency] = field
		case "holdApplicationUntilProxyStarts":
			s.equal[metadata.HoldApplication] = field
		case "terminationDrainDuration":
			d, err := time.ParseDuration(field.value)
			if err != nil {
				return field.errorf("%q is not a duration such as 30s", field.value)
			}
			field.value = fmt.Sprint(int64(math.Ceil(d.Seconds())))
			s.equal[metadata.DrainSeconds] = field
		default:
			s.ignored(istioProxyConfig+": "+key, "it has no meaning here")
		}
	}
	return nil
}

// named reads entries by their names or, as in older versions of Istio, a list of them.
func named[T any](f found, nameOf func(*T) *string) ([]T, error) {
	if len(f.value) > maxAnnotation {
		return nil, f.errorf("it is longer than %d bytes", maxAnnotation)
	}
	var list []T
	if strings.HasPrefix(strings.TrimSpace(f.value), "[") {
		if err := unmarshal([]byte(f.value), &list); err != nil {
			return nil, f.errorf("%v", err)
		}
	} else {
		var byName map[string]T
		if err := unmarshal([]byte(f.value), &byName); err != nil {
			return nil, f.errorf("%v", err)
		}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			entry := byName[name]
			*nameOf(&entry) = name
			list = append(list, entry)
		}
	}
	for i := range list {
		if *nameOf(&list[i]) == "" {
			return nil, f.errorf("an entry has no name")
		}
	}
	return list, nil
}

// addVolumes adds the volumes and mounts of Istio's annotations to the sidecar, which
// must be in the pod.
func (s *istioSettings) addVolumes(pod *corev1.Pod) error {
	if len(s.volumes) == 0 && len(s.mounts) == 0 {
		return nil
	}
	for c := range containersOf(pod) {
		if c.Name != driver.ProxyContainer {
			continue
		}
		for _, own := range c.VolumeMounts {
			for _, m := range s.mounts {
				if own.MountPath == m.MountPath {
					return fmt.Errorf("pod annotation %s: the sidecar has %s mounted at %s itself", istioUserVolumeMount, own.Name, own.MountPath)
				}
			}
		}
	}
	return podtemplate.Merge(pod, &corev1.Pod{Spec: corev1.PodSpec{
		Volumes:    s.volumes,
		Containers: []corev1.Container{{Name: driver.ProxyContainer, VolumeMounts: s.mounts}},
	}})
}

// istioRedirection adds Istio's traffic annotations to r, with Istio's semantics:
// outbound ports are redirected in addition to the ranges.
func istioRedirection(annotations map[string]string, r *agentspec.Redirection) error {
	list := func(name string) found {
		value, ok := annotations[istioTrafficPrefix+name]
		return found{strings.TrimSpace(value), podAnnotation(istioTrafficPrefix + name), ok}
	}
	for name, into := range map[string]*[]int{"excludeInboundPorts": &r.ExcludeInboundPorts, "excludeOutboundPorts": &r.ExcludeOutboundPorts} {
		if err := addExcluded(list(name), parsePorts, into); err != nil {
			return err
		}
	}
	if err := addExcluded(list("excludeOutboundIPRanges"), parseRanges, &r.ExcludeOutboundRanges); err != nil {
		return err
	}
	if err := addExcluded(list("excludeInterfaces"), parseInterfaces, &r.ExcludeInterfaces); err != nil {
		return err
	}
	switch f := list("includeInboundPorts"); {
	case !f.ok:
	case f.value == "*":
		r.IncludeInboundPorts = nil
	case f.value == "":
		r.DisableInbound = true
	default:
		if err := addList(f, parsePorts, &r.IncludeInboundPorts); err != nil {
			return err
		}
	}
	return istioIncludeOutbound(list("includeOutboundIPRanges"), list("includeOutboundPorts"), r)
}

func istioIncludeOutbound(ranges, ports found, r *agentspec.Redirection) error {
	var portList []int
	if ports.value != "*" {
		if err := addList(ports, parsePorts, &portList); err != nil {
			return err
		}
	}
	switch {
	case ranges.value == "*" || ports.value == "*":
		r.IncludeOutboundRanges, r.IncludeOutboundPorts = nil, nil
	case ranges.ok && ranges.value == "":
		r.IncludeOutboundRanges = nil
		r.IncludeOutboundPorts = append(r.IncludeOutboundPorts, portList...)
		r.DisableOutbound = len(r.IncludeOutboundPorts) == 0
	case ranges.ok:
		r.IncludeOutboundPorts = append(r.IncludeOutboundPorts, portList...)
		return addList(ranges, parseRanges, &r.IncludeOutboundRanges)
	case len(r.IncludeOutboundRanges) > 0 || len(r.IncludeOutboundPorts) > 0:
		r.IncludeOutboundPorts = append(r.IncludeOutboundPorts, portList...)
	}
	// Otherwise everything is redirected, including the ports.
	return nil
}

// addExcluded is addList for exclusions. As in Istio, "*" is not allowed for them.
func addExcluded[T any](f found, parse func(string) ([]T, error), into *[]T) error {
	if f.value == "*" {
		return f.errorf("%q excludes nothing in particular; to redirect nothing at all set %s: NONE", f.value, istioInterceptionMode)
	}
	return addList(f, parse, into)
}
