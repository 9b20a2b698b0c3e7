package chart_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// TestValuesReachMeshConfig sets values of Open Service Mesh and osm-edge one by one to
// something other than the default and looks for it in the MeshConfig.
func TestValuesReachMeshConfig(t *testing.T) {
	for _, test := range []struct{ values, field, want string }{
		{"{osm: {sidecarClass: pipy}}", "sidecar.sidecarClass", "pipy"},
		{"{osm: {sidecarImage: a/b:1}}", "sidecar.sidecarImage", "a/b:1"},
		{"{osm: {sidecarWindowsImage: a/b:1}}", "sidecar.sidecarWindowsImage", "a/b:1"},
		{"{osm: {sidecarDrivers: [{sidecarName: pipy, proxyServerPort: 6061}]}}", "sidecar.sidecarDrivers", "[{sidecarName: pipy, proxyServerPort: 6061}]"},
		{"{osm: {sidecarLogLevel: debug}}", "sidecar.logLevel", "debug"},
		{"{osm: {envoyLogLevel: debug}}", "sidecar.logLevel", "debug"},
		{"{osm: {sidecarLogLevel: info, envoyLogLevel: debug}}", "sidecar.logLevel", "info"},
		{"{osm: {enablePrivilegedInitContainer: true}}", "sidecar.enablePrivilegedInitContainer", "true"},
		{"{osm: {sidecarConcurrency: 4}}", "sidecar.concurrency", "4"},
		{"{osm: {maxDataPlaneConnections: 1000000}}", "sidecar.maxDataPlaneConnections", "1000000"},
		{"{osm: {configResyncInterval: 90s}}", "sidecar.configResyncInterval", "90s"},
		{"{osm: {sidecarTimeout: 30}}", "sidecar.sidecarTimeout", "30"},
		{"{sidecar: {drainSeconds: 0}}", "sidecar.drainSeconds", "0"},
		{"{sidecar: {drainSeconds: 20}}", "sidecar.drainSeconds", "20"},
		{"{sidecar: {preStopSeconds: 10}}", "sidecar.preStopSeconds", "10"},
		{"{osm: {localProxyMode: PodIP}}", "sidecar.localProxyMode", "PodIP"},
		{"{osm: {localDNSProxy: {enable: true}}}", "sidecar.localDNSProxy", "{enable: true}"},
		{"{osm: {enableEgress: false}}", "traffic.enableEgress", "false"},
		{"{osm: {enablePermissiveTrafficPolicy: false}}", "traffic.enablePermissiveTrafficPolicyMode", "false"},
		{"{osm: {trafficInterceptionMode: ebpf}}", "traffic.interceptionMode", "ebpf"},
		{"{osm: {http1PerRequestLoadBalancing: false}}", "traffic.http1PerRequestLoadBalancing", "false"},
		{"{osm: {http2PerRequestLoadBalancing: true}}", "traffic.http2PerRequestLoadBalancing", "true"},
		{"{osm: {outboundIPRangeExclusionList: [10.0.0.0/8]}}", "traffic.outboundIPRangeExclusionList", "[10.0.0.0/8]"},
		{"{osm: {outboundIPRangeInclusionList: [10.0.0.0/8]}}", "traffic.outboundIPRangeInclusionList", "[10.0.0.0/8]"},
		{"{osm: {outboundPortExclusionList: [3306]}}", "traffic.outboundPortExclusionList", "[3306]"},
		{"{osm: {inboundPortExclusionList: [3306]}}", "traffic.inboundPortExclusionList", "[3306]"},
		{"{osm: {networkInterfaceExclusionList: [eth1]}}", "traffic.networkInterfaceExclusionList", "[eth1]"},
		{"{}", "traffic.enableForwardedFor", "null"},
		{"{osm: {enableForwardedFor: true}}", "traffic.enableForwardedFor", "true"},
		{"{}", "traffic.connectTimeout", "null"},
		{"{osm: {connectTimeout: 2s}}", "traffic.connectTimeout", "2s"},
		{"{osm: {controllerLogLevel: warn}}", "observability.osmLogLevel", "warn"},
		{"{osm: {enableDebugServer: true}}", "observability.enableDebugServer", "true"},
		{"{osm: {accessLog: errors}}", "observability.accessLog", "errors"},
		{"{osm: {tracing: {address: a}}}", "observability.tracing", "null"},
		{"{osm: {tracing: {enable: true, image: jaeger}}}", "observability.tracing", "{enable: true}"},
		{"{osm: {tracing: {enable: true, protocol: OTLP, port: 4318}}}", "observability.tracing", "{enable: true, protocol: OTLP, port: 4318}"},
		{"{osm: {remoteLogging: {enable: true, level: 1}}}", "observability.remoteLogging", `{enable: true, level: 1, port: 30514, sampledFraction: "1.0"}`},
		{"{osm: {trustDomain: mesh.example.com}}", "certificate.trustDomain", "mesh.example.com"},
		{"{osm: {certificateProvider: {serviceCertValidityDuration: 1h}}}", "certificate.serviceCertValidityDuration", "1h"},
		{"{osm: {certificateProvider: {certKeyBitSize: 4096}}}", "certificate.certKeyBitSize", "4096"},
		{"{osm: {featureFlags: {enableRetryPolicy: true, enableEgressPolicy: false, enableMeshRootCertificate: true}}}", "featureFlags", "{enableRetryPolicy: true, enableEgressPolicy: false}"},
		{"{osm: {pluginChains: {inbound-tcp: [{plugin: a, priority: 0, disable: false}]}}}", "pluginChains", "{inbound-tcp: [{plugin: a, priority: 0, disable: false}]}"},
		{"{osm: {repoServer: {ipaddr: 10.0.0.1, codebase: mesh, image: a/b}}}", "repoServer", "{ipaddr: 10.0.0.1, codebase: mesh}"},
		{"{meshConfig: {spec: {traffic: {inboundTLSMode: Permissive}}}}", "traffic.inboundTLSMode", "Permissive"},
		{"{meshConfig: {spec: {sidecar: {logLevel: off}}}, osm: {sidecarLogLevel: info}}", "sidecar.logLevel", `"off"`},
	} {
		t.Run(test.values, func(t *testing.T) {
			values := strings.ReplaceAll(test.values, "logLevel: off", `logLevel: "off"`)
			var object unstructured.Unstructured
			for _, d := range documents(t, values) {
				if d.name != "MeshConfig/osm-mesh-config" {
					continue
				}
				if err := yaml.Unmarshal([]byte(d.text), &object.Object); err != nil {
					t.Fatal(err)
				}
			}
			got, _, err := unstructured.NestedFieldNoCopy(object.Object, append([]string{"spec"}, strings.Split(test.field, ".")...)...)
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if err := yaml.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("spec.%s (-want +got):\n%s", test.field, diff)
			}
		})
	}
}

// TestDefaultMeshConfigIsQuiet checks that an installation with the defaults reports no
// problems.
func TestDefaultMeshConfigIsQuiet(t *testing.T) {
	object := find[*v1alpha2.MeshConfig](documents(t, ""), "MeshConfig/osm-mesh-config")
	config := source.NewConfig(object, source.ConfigOptions{
		Classes:      []string{"envoy", "pipy"},
		BuiltinImage: func(class, _ string) string { return class + ":1" },
		Env:          func(string) string { return "" },
		InitImage:    "init:1",
	})
	for _, p := range config.Problems() {
		t.Error(p)
	}
}

// TestProxyPorts checks that the controller can be reached exactly on the ports of the
// classes that a pod may choose.
func TestProxyPorts(t *testing.T) {
	for _, test := range []struct {
		values string
		want   map[string]int32
	}{
		{"", map[string]int32{"grpc": 15130, "ads": 15128, "pipy": 6060, "haproxy": 6061}},
		{
			"{osm: {sidecarDrivers: [{sidecarName: Envoy, proxyServerPort: 7000}, {sidecarName: pipy}, {sidecarName: mine, proxyServerPort: 7001}]}}",
			map[string]int32{"grpc": 15130, "ads": 7000, "pipy": 6060, "haproxy": 6061, "proxies-2": 7001},
		},
		{"{osm: {sidecarDrivers: [{sidecarName: mine, proxyServerPort: 6060}]}}", map[string]int32{"grpc": 15130, "ads": 15128, "haproxy": 6061, "proxies-0": 6060}},
		{
			"{osm: {sidecarDrivers: [{sidecarName: pipy, proxyServerPort: 6061}, {sidecarName: haproxy, proxyServerPort: 6060}]}}",
			map[string]int32{"grpc": 15130, "ads": 15128, "pipy": 6061, "haproxy": 6060},
		},
	} {
		t.Run(test.values, func(t *testing.T) {
			all := documents(t, test.values)
			service, container := map[string]int32{}, map[string]int32{}
			for _, p := range find[*corev1.Service](all, "Service/outrigger-controller").Spec.Ports {
				service[p.Name] = p.Port
			}
			for _, p := range find[*appsv1.Deployment](all, "Deployment/outrigger-controller").Spec.Template.Spec.Containers[0].Ports {
				container[p.Name] = p.ContainerPort
			}
			test.want["identity"], test.want["metrics"] = 15129, 9091
			if diff := cmp.Diff(test.want, service); diff != "" {
				t.Errorf("ports of the Service (-want +got):\n%s", diff)
			}
			delete(test.want, "metrics")
			test.want["health"], test.want["debug"] = 9091, 9092
			if diff := cmp.Diff(test.want, container); diff != "" {
				t.Errorf("ports of the container (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefusedValues checks that errors name invalid values.
func TestRefusedValues(t *testing.T) {
	for _, test := range []struct{ values, want string }{
		{"{osm: {sidecarClas: envoy}}", "sidecarClas"},
		{"{OpenServiceMesh: {meshNam: osm}}", "/OpenServiceMesh'"},
		{"{openServiceMesh: {meshName: osm}}", "openServiceMesh"},
		{"{monitoring: {podMonitor: {nativeHistograms: 1}}}", "/monitoring/podMonitor/nativeHistograms"},
		{"{monitoring: {podMonitor: {interval: often}}}", "/monitoring/podMonitor/interval"},
		{"{injector: {compat: {istio: sometimes}}}", "/injector/compat/istio"},
		{"{revision: Canary}", "/revision"},
		{"{osm: {meshName: a b}}", "/osm/meshName"},
		{"{osm: {injector: {webhookTimeoutSeconds: 31}}}", "/osm/injector/webhookTimeoutSeconds"},
		{"{osm: {inboundPortExclusionList: [70000]}}", "/osm/inboundPortExclusionList"},
		{"{injector: {caBundle: pem}}", "injector.patchCABundle"},
		{"{injector: {injectCAFrom: a/b}}", "injector.patchCABundle"},
		{"{injector: {patchCABundle: false, caBundle: pem, injectCAFrom: a/b}}", "set one"},
		{"{injector: {certificate: {mode: vault}}}", "/injector/certificate/mode"},
		{"{injector: {certificate: {mode: secret}}}", "injector.certificate.secretName"},
		{"{injector: {certificate: {secretName: a}}}", "injector.certificate.mode: secret"},
		{"{injector: {certificate: {mode: files, caSecretName: a, volume: {emptyDir: {}}}}}", "injector.certificate.mode: ownCA"},
		{"{injector: {certificate: {mode: files}}}", "injector.certificate.volume"},
		{"{injector: {certificate: {volume: {emptyDir: {}}}}}", "injector.certificate.mode: files"},
		{"{osm: {caBundleSecretName: ''}}", "/osm/caBundleSecretName"},
		{"{osm: {certificateProvider: {kind: tresor2}}}", "/osm/certificateProvider/kind"},
		{"{osm: {certificateProvider: {kind: vault}, vault: {token: t}}}", "osm.vault.host"},
		{"{osm: {certificateProvider: {kind: vault}, vault: {host: vault}}}", "osm.vault.token"},
		{"{osm: {certificateProvider: {kind: vault}, vault: {host: vault, token: t, secret: {name: a}}}}", "set one"},
		{"{cni: {binDir: opt/cni/bin}}", "/cni/binDir"},
		{"{proxyUpgrades: {atOnce: 0}}", "/proxyUpgrades/atOnce"},
		{"{cni: {confName: ../10-pods.conflist}}", "/cni/confName"},
		{"{cni: {repair: restart}}", "/cni/repair"},
		{"{cni: {maxUnavailable: some}}", "/cni/maxUnavailable"},
		{"{osm: {vault: {port: 0}}}", "/osm/vault/port"},
		{"{osm: {sidecarDrivers: [{sidecarName: Pipy, proxyServerPort: 7000}, {sidecarName: mine, proxyServerPort: 7000}]}}", "pipy and mine both have the proxyServerPort 7000"},
	} {
		t.Run(test.values, func(t *testing.T) {
			_, err := render(t, test.values)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestWarnings checks that the warnings name values without an effect, but not empty ones.
func TestWarnings(t *testing.T) {
	for _, test := range []struct{ values, want string }{
		{"", ""},
		{"{osm: {deployGrafana: true, deployJaeger: false}}", "osm.deployGrafana: no effect"},
		{"{osm: {prometheus: {port: 7070}}}", "osm.prometheus: no effect"},
		{"{osm: {grafana: {enableRemoteRendering: true}, fluentBit: {name: fluentbit-logger}}}", "osm.grafana, osm.fluentBit: no effect"},
		{"{osm: {tracing: {enable: true, image: jaegertracing/all-in-one}}}", "osm.tracing.image: no effect"},
		{"{osm: {deployGrafana: false, osmBootstrap: {podLabels: {}}, validatorWebhook: {webhookConfigurationName: ''}}}", ""},
		{"{osm: {validatorWebhook: {webhookConfigurationName: a}}}", "osm.validatorWebhook: no effect"},
		{"{osm: {image: {name: {osmInjector: a}, digest: {osmInjector: ''}}}}", "osm.image.name.osmInjector: no effect"},
		{"{osm: {certificateProvider: {kind: tresor}}}", ""},
		{"{osm: {certificateProvider: {kind: cert-manager}, caBundleSecretName: mesh-ca, featureFlags: {enableMeshRootCertificate: true}}}", ""},
		{"{contour: {enabled: true}}", "contour.enabled: no effect"},
		{"{osm: {localProxyMode: Localhost}}", "osm.localProxyMode: no effect"},
		{"{osm: {webhookConfigNamePrefix: osm-webhook}}", "osm.webhookConfigNamePrefix: no effect"},
		{"{osm: {featureFlags: {enableSPIFFE: true}}}", "osm.featureFlags.enableSPIFFE: no effect"},
		{"{osm: {featureFlags: {enableSPIFFE: false}}}", ""},
		{"{OpenServiceMesh: {deployJaeger: true}}", "osm.deployJaeger: no effect"},
		{"{OpenServiceMesh: {useHTTPSIngress: true}}", "osm.useHTTPSIngress: no effect"},
		{"{OpenServiceMesh: {certificateManager: vault}}", "osm.certificateManager: no effect, because Open Service Mesh v0.10 renamed it to osm.certificateProvider.kind"},
		{"{injector: {patchCABundle: false}}", "caBundle"},
	} {
		t.Run(test.values, func(t *testing.T) {
			release, err := render(t, test.values)
			if err != nil {
				t.Fatal(err)
			}
			_, warning, found := strings.Cut(release.Notes, "WARNING: ")
			if found != (test.want != "") || !strings.Contains(warning, test.want) {
				t.Errorf("got warning %q, want %q", warning, test.want)
			}
		})
	}
}
