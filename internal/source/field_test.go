package source_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// inEffect returns the paths of all fields of the spec that have an effect.
func inEffect() []string {
	return []string{
		"spec.sidecar.enablePrivilegedInitContainer",
		"spec.sidecar.concurrency",
		"spec.sidecar.drainSeconds",
		"spec.sidecar.preStopSeconds",
		"spec.sidecar.logLevel",
		"spec.sidecar.sidecarClass",
		"spec.sidecar.sidecarImage",
		"spec.sidecar.sidecarWindowsImage",
		"spec.sidecar.SidecarImageWindowsImage",
		"spec.sidecar.sidecarImageWindowsImage",
		"spec.sidecar.sideWindowsImage",
		"spec.sidecar.envoyImage",
		"spec.sidecar.envoyWindowsImage",
		"spec.sidecar.initContainerImage",
		// Sidecars always work as with PodIP, and every preset has Localhost.
		"spec.sidecar.localProxyMode",
		"spec.sidecar.resources",
		"spec.sidecar.sidecarDrivers[0].sidecarName",
		"spec.sidecar.sidecarDrivers[0].sidecarImage",
		"spec.sidecar.sidecarDrivers[0].sidecarWindowsImage",
		"spec.sidecar.sidecarDrivers[0].SidecarImageWindowsImage",
		"spec.sidecar.sidecarDrivers[0].sidecarImageWindowsImage",
		"spec.sidecar.sidecarDrivers[0].initContainerImage",
		"spec.sidecar.sidecarDrivers[0].sidecarDisabledMTLS",
		"spec.traffic.outboundIPRangeExclusionList",
		"spec.traffic.outboundIPRangeInclusionList",
		"spec.traffic.outboundPortExclusionList",
		"spec.traffic.inboundPortExclusionList",
		"spec.traffic.networkInterfaceExclusionList",
		"spec.observability.osmLogLevel",
		"spec.certificate.podCertificates",
		"spec.certificate.trustDomain",
		"spec.sidecar.sidecarDrivers[0].proxyServerPort",
		"spec.sidecar.maxDataPlaneConnections",
		"spec.sidecar.configResyncInterval",
		"spec.sidecar.tlsMinProtocolVersion",
		"spec.sidecar.tlsMaxProtocolVersion",
		"spec.sidecar.cipherSuites",
		"spec.sidecar.ecdhCurves",
		"spec.traffic.inboundTLSMode",
		"spec.traffic.enableForwardedFor",
		"spec.traffic.connectTimeout",
		"spec.traffic.enableEgress",
		"spec.traffic.enablePermissiveTrafficPolicyMode",
		"spec.traffic.tokenKeys.hosts",
		"spec.traffic.tokenKeys.insideHosts",
		"spec.traffic.tokenKeys.caBundle",
		"spec.traffic.inboundExternalAuthorization.enable",
		"spec.traffic.inboundExternalAuthorization.address",
		"spec.traffic.inboundExternalAuthorization.port",
		"spec.traffic.inboundExternalAuthorization.statPrefix",
		"spec.traffic.inboundExternalAuthorization.timeout",
		"spec.traffic.inboundExternalAuthorization.failureModeAllow",
		"spec.observability.enableDebugServer",
		"spec.observability.accessLog",
		"spec.observability.tracing.enable",
		"spec.observability.tracing.protocol",
		"spec.observability.tracing.port",
		"spec.observability.tracing.address",
		"spec.observability.tracing.endpoint",
		"spec.observability.tracing.sampledFraction",
		"spec.certificate.serviceCertValidityDuration",
		"spec.certificate.ingressGateway.subjectAltNames",
		"spec.certificate.ingressGateway.validityDuration",
		"spec.certificate.ingressGateway.secret",
		"spec.featureFlags.enableEgressPolicy",
		"spec.featureFlags.enableIngressBackendPolicy",
		"spec.featureFlags.enableEnvoyActiveHealthChecks",
		"spec.featureFlags.enableSidecarActiveHealthChecks",
		"spec.featureFlags.enableRetryPolicy",
	}
}

// TestEachFieldWorksOrIsAProblem sets every field of the spec, one at a time. Each must have an
// effect or cause a Problem.
func TestEachFieldWorksOrIsAProblem(t *testing.T) {
	leaves := fields(reflect.TypeFor[v1alpha2.MeshConfigSpec](), "spec")
	if len(leaves) < 80 {
		t.Fatalf("found only %d fields", len(leaves))
	}
	var paths []string
	for _, leaf := range leaves {
		paths = append(paths, leaf.path)
		inert := false
		for _, value := range samples(leaf.kind) {
			obj := &v1alpha2.MeshConfig{}
			leaf.set(reflect.ValueOf(&obj.Spec).Elem(), value)
			problems := source.NewConfig(obj, options(nil)).Problems()
			for _, p := range problems {
				covers := leaf.path == p.Field || strings.HasPrefix(leaf.path, p.Field+".") || strings.HasPrefix(leaf.path, p.Field+"[")
				inert = inert || covers && p.Reason == source.ReasonNoEffect
			}
		}
		switch works := slices.Contains(inEffect(), leaf.path); {
		case works && inert:
			t.Errorf("%s does something, yet there is a Problem that it does not", leaf.path)
		case !works && !inert:
			t.Errorf("%s neither does something nor is a Problem: add it to inertFields, or here to inEffect", leaf.path)
		}
	}
	for _, path := range inEffect() {
		if !slices.Contains(paths, path) {
			t.Errorf("inEffect names %s, which is no field", path)
		}
	}
}

// field is a field of the spec whose type is not a struct of this API.
type field struct {
	path string
	kind reflect.Type
	// set sets the field in a spec, and creates the structs that contain it.
	set func(spec, value reflect.Value)
}

// fields returns the leaves of a struct.
func fields(kind reflect.Type, path string) []field {
	var all []field
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		inside := func(parent reflect.Value) reflect.Value {
			// The fields of a disabled part have no effect.
			if enable := parent.FieldByName("Enable"); enable.IsValid() {
				enable.SetBool(true)
			}
			return parent.Field(i)
		}
		of := kind.Field(i).Type
		switch {
		case isOurs(of):
			for _, leaf := range fields(of, path+"."+name) {
				all = append(all, field{leaf.path, leaf.kind, func(parent, value reflect.Value) { leaf.set(inside(parent), value) }})
			}
		case of.Kind() == reflect.Pointer && isOurs(of.Elem()):
			for _, leaf := range fields(of.Elem(), path+"."+name) {
				all = append(all, field{leaf.path, leaf.kind, func(parent, value reflect.Value) {
					inside(parent).Set(reflect.New(of.Elem()))
					leaf.set(parent.Field(i).Elem(), value)
				}})
			}
		case of.Kind() == reflect.Slice && isOurs(of.Elem()):
			for _, leaf := range fields(of.Elem(), path+"."+name+"[0]") {
				all = append(all, field{leaf.path, leaf.kind, func(parent, value reflect.Value) {
					inside(parent).Set(reflect.MakeSlice(of, 1, 1))
					leaf.set(parent.Field(i).Index(0), value)
				}})
			}
		default:
			all = append(all, field{path + "." + name, of, func(parent, value reflect.Value) { inside(parent).Set(value) }})
		}
	}
	return all
}

func isOurs(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[v1alpha2.MeshConfigSpec]().PkgPath()
}

// samples returns valid values of a leaf's type. At least one is not the default of any preset.
func samples(t reflect.Type) []reflect.Value {
	byType := map[reflect.Type][]any{
		reflect.TypeFor[v1alpha2.Duration]():         {v1alpha2.Duration("7h")},
		reflect.TypeFor[v1alpha2.TLSVersion]():       {v1alpha2.TLSAuto},
		reflect.TypeFor[v1alpha2.LocalProxyMode]():   {v1alpha2.LocalProxyModePodIP},
		reflect.TypeFor[v1alpha2.InboundTLSMode]():   {v1alpha2.InboundTLSPermissive},
		reflect.TypeFor[v1alpha2.InterceptionMode](): {v1alpha2.InterceptionModeEBPF},
		reflect.TypeFor[*bool]():                     {new(true), new(false)},
		reflect.TypeFor[bool]():                      {true},
		reflect.TypeFor[string]():                    {"pipy"},
		reflect.TypeFor[*string]():                   {new("0.5")},
		reflect.TypeFor[int32]():                     {int32(7)},
		reflect.TypeFor[float64]():                   {7.0},
		reflect.TypeFor[[]string]():                  {[]string{"10.0.0.0/8"}},
		reflect.TypeFor[[]int32]():                   {[]int32{7}},
	}
	values := []reflect.Value{}
	for _, value := range byType[t] {
		values = append(values, reflect.ValueOf(value))
	}
	if len(values) == 0 {
		values = append(values, reflect.Zero(t))
	}
	return values
}
