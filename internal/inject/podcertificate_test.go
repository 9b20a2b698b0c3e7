package inject_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// TestPodCertificate checks when a pod gets the kubelet's volume, in its sidecar only, and that
// it is injected without it otherwise.
func TestPodCertificate(t *testing.T) {
	can := func(context.Context) error { return nil }
	windows := strings.Replace(smallPod, `"spec":{`, `"spec":{"os":{"name":"windows"},`, 1)
	for name, tt := range map[string]struct {
		on      bool
		cluster func(context.Context) error
		life    time.Duration
		pod     string
		seconds int32
		warning string
	}{
		"on":                   {on: true, cluster: can, seconds: 24*60*60 + 300},
		"short":                {on: true, cluster: can, life: time.Minute, seconds: 60 * 60},
		"long":                 {on: true, cluster: can, life: 365 * 24 * time.Hour, seconds: 91 * 24 * 60 * 60},
		"off":                  {cluster: can},
		"the cluster cannot":   {on: true, cluster: func(context.Context) error { return errors.New("it is too old") }, warning: "it is too old"},
		"the cluster is none":  {on: true, warning: "not known"},
		"a pod on Windows":     {on: true, cluster: can, pod: windows},
		"injected once before": {on: true, cluster: can, pod: "again", seconds: 24*60*60 + 300},
	} {
		for _, class := range []string{"envoy", "grpc", "haproxy", "pipy"} {
			if class != "envoy" && tt.pod == windows {
				continue
			}
			t.Run(name+"/"+class, func(t *testing.T) {
				w := ordinary()
				w.configurator.class, w.configurator.life = class, tt.life
				w.configurator.images = map[string]string{"envoy/windows": "envoy:windows"}
				w.configurator.mesh.Spec.Certificate = v1alpha2.CertificateSpec{PodCertificates: tt.on}
				config, err := inject.NewConfig(w.config, w.values)
				if err != nil {
					t.Fatal(err)
				}
				options := w.options()
				options.PodCertificates = tt.cluster
				injector := inject.New(options, config)
				pod := smallPod
				if tt.pod == windows {
					pod = windows
				}
				result := injector.Inject(t.Context(), w.request(pod))
				if tt.pod == "again" {
					pod = string(patched(t, []byte(pod), result.Patch))
					result = injector.Inject(t.Context(), w.request(pod))
				}
				if result.Decision.Outcome == inject.Deny {
					t.Fatalf("the pod is denied: %s", result.Decision.Message)
				}
				var got corev1.Pod
				if err := json.Unmarshal(patched(t, []byte(pod), result.Patch), &got); err != nil {
					t.Fatal(err)
				}
				warnings := ""
				for _, warning := range result.Warnings {
					if warning.Code == "pod_certificates" {
						warnings += warning.Message
					}
				}
				if tt.warning == "" && warnings != "" || !strings.Contains(warnings, tt.warning) {
					t.Errorf("the warnings are %q, want %q", warnings, tt.warning)
				}
				at := slices.IndexFunc(got.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "outrigger-certificate" })
				if (at >= 0) != (tt.seconds > 0) {
					t.Fatalf("the volumes are %v", got.Spec.Volumes)
				}
				if at < 0 {
					return
				}
				path := "openservicemesh.io:mesh-osm:roots"
				want := []corev1.VolumeProjection{
					{PodCertificate: &corev1.PodCertificateProjection{
						SignerName: "openservicemesh.io/mesh-osm", KeyType: "ECDSAP256", MaxExpirationSeconds: &tt.seconds, CredentialBundlePath: "credential.pem",
					}},
					{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &path, Path: "roots.pem"}},
				}
				if diff := cmp.Diff(want, got.Spec.Volumes[at].Projected.Sources); diff != "" {
					t.Errorf("the volume (-want +got):\n%s", diff)
				}
				for _, c := range slices.Concat(got.Spec.InitContainers, got.Spec.Containers) {
					mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
						return m.Name == "outrigger-certificate" && m.MountPath == "/run/outrigger-certificate" && m.ReadOnly
					})
					if mounted != (c.Name == "outrigger-proxy") {
						t.Errorf("the container %s mounts the volume: %v", c.Name, mounted)
					}
				}
			})
		}
	}
}

// TestPodCertificateIsSwitched changes the setting while the injector runs.
func TestPodCertificateIsSwitched(t *testing.T) {
	w := ordinary()
	config, err := inject.NewConfig(w.config, w.values)
	if err != nil {
		t.Fatal(err)
	}
	options := w.options()
	options.PodCertificates = func(context.Context) error { return nil }
	injector := inject.New(options, config)
	for _, on := range []bool{false, true, true, false} {
		w.configurator.mesh.Spec.Certificate.PodCertificates = on
		got := string(patched(t, []byte(smallPod), injector.Inject(t.Context(), w.request(smallPod)).Patch))
		if strings.Contains(got, "outrigger-certificate") != on {
			t.Errorf("switched %v, the pod is %s", on, got)
		}
	}
}

func TestSignerName(t *testing.T) {
	if got := inject.SignerName("Mesh_1"); got != "openservicemesh.io/mesh-mesh-1" {
		t.Error(got)
	}
	if got := inject.TrustBundleName("Mesh_1"); got != "openservicemesh.io:mesh-mesh-1:roots" {
		t.Error(got)
	}
}
