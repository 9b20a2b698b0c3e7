package servingcert_test

import (
	"crypto/tls"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// TestNewCAPublishedFirst checks that a new CA is published before its certificate is
// served.
func TestNewCAPublishedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := newTestCA(t, 365*day), newTestCA(t, 365*day)
		first := oldCA.material(t, 30*day)
		// The new source no longer has the old CA, as with a self-signed certificate of
		// cert-manager.
		second := newCA.material(t, 30*day)
		client := fake.NewClientset(webhookConfiguration(nil, nil))
		issuer := newScript(always(first))
		manager, _ := start(t, issuer, patching(client))

		time.Sleep(time.Hour)
		issuer.change(always(second))
		for _, bundle := range append(bundlesIn(t, client), manager.CABundle()) {
			if diff := cmp.Diff(serialsOf(oldCA, newCA), serials(t, bundle)); diff != "" {
				t.Errorf("the bundle does not hold both CAs (-want +got):\n%s", diff)
			}
		}
		time.Sleep(delay - time.Millisecond)
		if servedBy(t, manager) != serial(first) {
			t.Error("the new certificate is served before the propagation delay has passed")
		}
		time.Sleep(2 * time.Millisecond)
		if servedBy(t, manager) != serial(second) {
			t.Error("the new certificate is not served after the propagation delay")
		}
		if diff := cmp.Diff(serialsOf(oldCA, newCA), serials(t, bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("the old CA is gone while other replicas may still need it (-want +got):\n%s", diff)
		}
		time.Sleep(6*delay + time.Second)
		if diff := cmp.Diff(serialsOf(newCA), serials(t, bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("the old CA has not been taken away (-want +got):\n%s", diff)
		}
	})
}

// TestNewCANotInConfiguration checks that a new CA waits until the configuration contains
// it.
func TestNewCANotInConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := newTestCA(t, 365*day), newTestCA(t, 365*day)
		first, second := oldCA.material(t, 3*day), newCA.material(t, 300*day, oldCA)
		client := fake.NewClientset(webhookConfiguration(nil))
		issuer := newScript(always(first))
		manager, _ := start(t, issuer, patching(client))

		allow := blockPatches(client)
		issuer.change(always(second))
		time.Sleep(day)
		if servedBy(t, manager) != serial(first) {
			t.Error("a certificate is served whose CA is not in the caBundle")
		}

		allow()
		time.Sleep(2*time.Minute + delay)
		if servedBy(t, manager) != serial(second) {
			t.Error("the new certificate is not served though its CA is in the caBundle")
		}
	})
}

// TestNewCAAfterExpiry checks that a certificate of a new CA is served at the latest when
// the old one expires.
func TestNewCAAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := newTestCA(t, 365*day), newTestCA(t, 365*day)
		client := fake.NewClientset(webhookConfiguration(nil))
		issuer := newScript(always(oldCA.material(t, 3*time.Hour)))
		manager, _ := start(t, issuer, patching(client))

		blockPatches(client)
		second := newCA.material(t, 300*day, oldCA)
		issuer.change(always(second))
		time.Sleep(3*time.Hour + time.Second)
		if servedBy(t, manager) != serial(second) {
			t.Error("an expired certificate is served though a valid one is at hand")
		}
	})
}

// TestNewCAWithoutPatching checks that without patching a new CA waits for the
// propagation delay.
func TestNewCAWithoutPatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := newTestCA(t, 365*day), newTestCA(t, 365*day)
		client := fake.NewClientset(webhookConfiguration(nil))
		first, second := oldCA.material(t, 30*day), newCA.material(t, 30*day, oldCA)
		issuer := newScript(always(first))
		manager, _ := start(t, issuer, servingcert.Options{Client: client})

		issuer.change(always(second))
		if servedBy(t, manager) != serial(first) {
			t.Error("the new certificate is served at once")
		}
		time.Sleep(delay + time.Millisecond)
		if servedBy(t, manager) != serial(second) {
			t.Error("the new certificate is not served after the propagation delay")
		}
		if actions := client.Actions(); len(actions) > 0 {
			t.Errorf("the API server was asked %v though patching is off", actions)
		}
	})
}

// TestRenewalFromSameCA checks that a renewed certificate of the same CA is served at
// once.
func TestRenewalFromSameCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, 365*day)
		issuer := newScript(always(ca.material(t, 30*day)))
		manager, _ := start(t, issuer, patching(fake.NewClientset(webhookConfiguration(nil))))
		second := ca.material(t, 30*day)
		issuer.change(always(second))
		if servedBy(t, manager) != serial(second) {
			t.Error("the renewed certificate is not served")
		}
	})
}

// TestForeignBundleChanges checks that changes of the bundle by others are reverted.
func TestForeignBundleChanges(t *testing.T) {
	for what, spoil := range map[string]func(ours []byte) []byte{
		"removed":        func([]byte) []byte { return nil },
		"garbage":        func([]byte) []byte { return []byte("not PEM") },
		"twice":          func(ours []byte) []byte { return slices.Concat(ours, ours) },
		"with a comment": func(ours []byte) []byte { return slices.Concat([]byte("# our CA\n"), ours) },
		"a broken block": func([]byte) []byte {
			return []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		},
		"one more newline": func(ours []byte) []byte { return slices.Concat(ours, []byte("\n")) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(webhookConfiguration(nil, nil))
				material := newTestCA(t, 365*day).material(t, 30*day)
				manager, _ := start(t, newScript(always(material)), patching(client))
				time.Sleep(time.Hour)

				setBundles(t, client, manager.CABundle(), spoil(manager.CABundle()))
				settle()
				for _, bundle := range bundlesIn(t, client) {
					if diff := cmp.Diff(string(material.CABundle.Encode()), string(bundle)); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				}
			})
		})
	}
}

// TestForeignCA checks that a CA of others stays in the bundle for a while.
func TestForeignCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, foreign, expired := newTestCA(t, 365*day), newTestCA(t, 365*day), newTestCA(t, -time.Millisecond)
		client := fake.NewClientset(webhookConfiguration(nil))
		start(t, newScript(always(ours.material(t, 30*day))), patching(client))

		setBundles(t, client, pemOf(foreign, expired))
		settle()
		if diff := cmp.Diff(serialsOf(ours, foreign), serials(t, bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		time.Sleep(6*delay + time.Second)
		if diff := cmp.Diff(serialsOf(ours), serials(t, bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("the foreign CA stayed (-want +got):\n%s", diff)
		}
	})
}

// TestPatchedFields checks that only the bundles are patched.
func TestPatchedFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := webhookConfiguration(nil, nil)
		config.Labels = map[string]string{"keep": "me"}
		config.Webhooks[1].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		client := fake.NewClientset(config, &admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "another"},
			Webhooks:   []admissionv1.MutatingWebhook{{Name: "c.outrigger.test"}},
		})
		manager, _ := start(t, newScript(always(newTestCA(t, 365*day).material(t, 30*day))), patching(client))

		want := config.DeepCopy()
		for i := range want.Webhooks {
			want.Webhooks[i].ClientConfig.CABundle = manager.CABundle()
		}
		configs := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
		got, err := configs.Get(t.Context(), configName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got.ManagedFields = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		another, err := configs.Get(t.Context(), "another", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if another.Webhooks[0].ClientConfig.CABundle != nil {
			t.Error("a configuration of another name was patched")
		}
	})
}

// TestMissingConfiguration checks that the bundle is written once the configuration
// exists.
func TestMissingConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(5 * time.Second) // so that the certificate is there first
			return false, nil, nil
		})
		registry := prometheus.NewRegistry()
		options := patching(client)
		options.Registerer = registry
		manager, _ := start(t, newScript(always(newTestCA(t, 365*day).material(t, 30*day))), options)
		for _, wait := range []time.Duration{10 * time.Second, time.Hour} {
			time.Sleep(wait)
			if got := gather(t, registry)["outrigger_injector_ca_bundle_patches_total{result=missing}"]; got != 1 {
				t.Errorf("after %s the configuration was counted as missing %v times, want once", wait, got)
			}
		}
		for _, action := range client.Actions() {
			if action.GetVerb() != "list" && action.GetVerb() != "watch" {
				t.Errorf("%s of a configuration that does not exist", action.GetVerb())
			}
		}

		configs := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
		if _, err := configs.Create(t.Context(), webhookConfiguration(nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if diff := cmp.Diff(string(manager.CABundle()), string(bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}

		if err := configs.Delete(t.Context(), configName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := gather(t, registry)["outrigger_injector_ca_bundle_patches_total{result=missing}"]; got != 2 {
			t.Errorf("the configuration was counted as missing %v times, want twice", got)
		}
	})
}

// TestLateReplicas checks that replicas that learn of a new CA late do not remove it.
func TestLateReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldCA, newCA := newTestCA(t, 365*day), newTestCA(t, 365*day)
		first, second := oldCA.material(t, 30*day), newCA.material(t, 30*day)
		client := fake.NewClientset(webhookConfiguration(nil))
		early, late := newScript(always(first)), newScript(always(first))
		patches := 0
		client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			patches++
			// An endless fight takes no time on this clock, so it must be detected.
			return patches > 100, nil, errors.New("too many patches")
		})
		replicas := map[string]*servingcert.Manager{}
		replicas["early"], _ = start(t, early, patching(client))
		replicas["late"], _ = start(t, late, patching(client))
		time.Sleep(time.Hour)

		early.change(always(second))
		// A replica that starts now has never seen the old CA.
		replicas["fresh"], _ = start(t, newScript(always(second)), patching(client))
		for elapsed := time.Duration(0); elapsed < 150*time.Second; elapsed += time.Second {
			if elapsed == 20*time.Second {
				late.change(always(second))
			}
			bundle := bundlesIn(t, client)[0]
			for name, replica := range replicas {
				if err := handshake(replica.TLSConfig(), bundle, names.ServerName(), tls.VersionTLS13); err != nil {
					t.Fatalf("after %s, replica %s: %v", elapsed, name, err)
				}
			}
			settle()
		}
		// Each replica may try each of: the first bundle, both CAs, the new one.
		if patches > 9 {
			t.Errorf("%d patches for one change of the CA", patches)
		}
		if diff := cmp.Diff(serialsOf(newCA), serials(t, bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestPatchConflict checks that a patch is repeated after a conflict.
func TestPatchConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(webhookConfiguration(nil))
		conflicts := 3
		client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			conflicts--
			return conflicts >= 0, nil, apierrors.NewConflict(schema.GroupResource{}, configName, errors.New("changed meanwhile"))
		})
		manager, _ := start(t, newScript(always(newTestCA(t, 365*day).material(t, 30*day))), patching(client))
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(string(manager.CABundle()), string(bundlesIn(t, client)[0])); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
