package servingcert_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

const (
	configName = "outrigger-injector"
	delay      = 10 * time.Second
	day        = 24 * time.Hour
)

// script is an Issuer that a test controls.
type script struct {
	mu       sync.Mutex
	issue    func() (servingcert.Material, error)
	issued   int
	newsFrom chan struct{}
}

func newScript(issue func() (servingcert.Material, error)) *script {
	return &script{issue: issue, newsFrom: make(chan struct{}, 1)}
}

func (s *script) Issue(context.Context) (servingcert.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issued++
	return s.issue()
}

func (s *script) Watch(ctx context.Context, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.newsFrom:
			changed()
		}
	}
}

// change changes the source and reports the change.
func (s *script) change(issue func() (servingcert.Material, error)) {
	s.mu.Lock()
	s.issue = issue
	s.mu.Unlock()
	s.newsFrom <- struct{}{}
	synctest.Wait()
}

func (s *script) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issued
}

func always(material servingcert.Material) func() (servingcert.Material, error) {
	return func() (servingcert.Material, error) { return material, nil }
}

func failing(err error) func() (servingcert.Material, error) {
	return func() (servingcert.Material, error) { return servingcert.Material{}, err }
}

// blockPatches makes the client refuse all patches until the returned function is
// called.
func blockPatches(client *fake.Clientset) (allow func()) {
	var allowed atomic.Bool
	client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !allowed.Load(), nil, apierrors.NewForbidden(schema.GroupResource{}, configName, nil)
	})
	return func() { allowed.Store(true) }
}

// webhookConfiguration returns a configuration with one webhook per bundle.
func webhookConfiguration(bundles ...[]byte) *admissionv1.MutatingWebhookConfiguration {
	config := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: configName}}
	for i, bundle := range bundles {
		config.Webhooks = append(config.Webhooks, admissionv1.MutatingWebhook{
			Name:         string(rune('a'+i)) + ".outrigger.test",
			ClientConfig: admissionv1.WebhookClientConfig{CABundle: bundle},
		})
	}
	return config
}

// settle lets a second pass in the bubble, in which everything must be done.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// start runs a manager in the bubble until the test ends.
func start(t *testing.T, issuer servingcert.Issuer, options servingcert.Options) (*servingcert.Manager, context.CancelFunc) {
	t.Helper()
	options.ServerName = names.ServerName()
	options.PropagationDelay = delay
	options.Logger = slog.New(slog.DiscardHandler)
	manager, err := servingcert.New(issuer, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		manager.Run(ctx)
	}()
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	settle()
	return manager, stop
}

func patching(client kubernetes.Interface) servingcert.Options {
	return servingcert.Options{Client: client, WebhookConfiguration: configName}
}

func bundlesIn(t testing.TB, client kubernetes.Interface) [][]byte {
	t.Helper()
	config, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), configName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var bundles [][]byte
	for _, webhook := range config.Webhooks {
		bundles = append(bundles, webhook.ClientConfig.CABundle)
	}
	return bundles
}

func setBundles(t testing.TB, client kubernetes.Interface, bundles ...[]byte) {
	t.Helper()
	config := webhookConfiguration(bundles...)
	_, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(t.Context(), config, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func servedBy(t testing.TB, manager *servingcert.Manager) string {
	t.Helper()
	cert, err := manager.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf.SerialNumber.String()
}

func serial(material servingcert.Material) string {
	return material.Certificate.Leaf.SerialNumber.String()
}

// TestFirstCertificate checks that the first certificate is served and published at once.
func TestFirstCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, 365*day)
		material := ca.material(t, day)
		client := fake.NewClientset(webhookConfiguration(nil, []byte("\n")))
		registry := prometheus.NewRegistry()
		options := patching(client)
		options.Registerer = registry
		manager, _ := start(t, newScript(always(material)), options)

		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			for _, bundle := range append(bundlesIn(t, client), manager.CABundle()) {
				if err := handshake(manager.TLSConfig(), bundle, names.ServerName(), version); err != nil {
					t.Errorf("TLS %x: %v", version, err)
				}
			}
		}
		if err := handshake(manager.TLSConfig(), manager.CABundle(), names.ServerName(), tls.VersionTLS11); err == nil {
			t.Error("a handshake with TLS 1.1 succeeded")
		}
		if want := material.Certificate.Leaf.NotAfter; !manager.Expiry().Equal(want) {
			t.Errorf("Expiry() = %v, want %v", manager.Expiry(), want)
		}
		want := map[string]float64{
			"outrigger_injector_certificate_expiry_timestamp_seconds":       float64(material.Certificate.Leaf.NotAfter.Unix()),
			"outrigger_injector_certificate_renewals_total{result=success}": 1,
			"outrigger_injector_certificate_renewals_total{result=error}":   0,
			"outrigger_injector_ca_bundle_patches_total{result=success}":    1,
			"outrigger_injector_ca_bundle_patches_total{result=error}":      0,
			"outrigger_injector_ca_bundle_patches_total{result=conflict}":   0,
			"outrigger_injector_ca_bundle_patches_total{result=missing}":    0,
		}
		if diff := cmp.Diff(want, gather(t, registry)); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

func gather(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("linting the metrics: %v %v", problems, err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += "{" + label.GetName() + "=" + label.GetValue() + "}"
			}
			values[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return values
}

// TestRenewalTime checks that certificates are renewed after two thirds of their
// validity.
func TestRenewalTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, 365*day)
		issuer := newScript(func() (servingcert.Material, error) { return ca.material(t, 30*day), nil })
		manager, _ := start(t, issuer, servingcert.Options{})
		first := servedBy(t, manager)

		time.Sleep(18 * day)
		if got := servedBy(t, manager); got != first {
			t.Error("renewed before 60% of the life had gone")
		}
		time.Sleep(2*day + time.Second)
		if got := servedBy(t, manager); got == first {
			t.Error("not renewed when two thirds of the life had gone")
		}
		if got := issuer.calls(); got != 2 {
			t.Errorf("Issue was called %d times, want 2", got)
		}
	})
}

// TestFailedRenewal checks that the last certificate stays in use after a failed renewal,
// which is retried.
func TestFailedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newTestCA(t, 365*day)
		good := ca.material(t, 3*time.Hour)
		issuer := newScript(always(good))
		manager, _ := start(t, issuer, servingcert.Options{})

		issuer.change(failing(errors.New("the signer is away")))
		before := issuer.calls()
		time.Sleep(30 * time.Minute)
		if got := servedBy(t, manager); got != serial(good) {
			t.Error("the last good certificate is not served any more")
		}
		// 1, 2, 4, ... 64 seconds, then about one a minute.
		if calls := issuer.calls() - before; calls < 25 || calls > 45 {
			t.Errorf("%d attempts in half an hour, want about 35", calls)
		}

		better := ca.material(t, 3*time.Hour)
		issuer.mu.Lock()
		issuer.issue = always(better)
		issuer.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if got := servedBy(t, manager); got != serial(better) {
			t.Error("the certificate of the mended issuer is not served")
		}
	})
}

// TestInvalidMaterial checks that material that the API server would refuse is not
// served.
func TestInvalidMaterial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := newTestCA(t, 365*day), newTestCA(t, 365*day)
		good := ca.material(t, 30*day)
		issuer := newScript(always(good))
		manager, _ := start(t, issuer, servingcert.Options{})

		cert, key := ca.issue(t, 30*day)
		strangeCert, strangeKey := ca.issue(t, 30*day, "another.mesh.svc")
		for what, bad := range map[string]servingcert.Material{
			"unknown CA":   materialOf(t, cert, key, other.pem),
			"no bundle":    materialOf(t, cert, key, nil),
			"another name": materialOf(t, strangeCert, strangeKey, ca.pem),
			"expired":      ca.material(t, -time.Millisecond),
			"nothing":      {},
		} {
			issuer.change(always(bad))
			if got := servedBy(t, manager); got != serial(good) {
				t.Errorf("%s: served", what)
			}
		}
	})
}

// TestHandshakeWithoutCertificate checks that without a certificate the handshake fails
// with the reason.
func TestHandshakeWithoutCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		manager, _ := start(t, newScript(failing(errors.New("Secret mesh/tls does not exist yet"))), servingcert.Options{
			SelfCheck: servingcert.SelfCheck{Address: "127.0.0.1:1", Accept: func([]byte) error { return nil }},
		})
		const want = "there is no serving certificate yet: Secret mesh/tls does not exist yet"
		if _, err := manager.GetCertificate(&tls.ClientHelloInfo{}); err == nil || err.Error() != want {
			t.Errorf("GetCertificate: %v, want %s", err, want)
		}
		if err := manager.Ready(t.Context()); err == nil || err.Error() != want {
			t.Errorf("Ready: %v, want %s", err, want)
		}
		if manager.CABundle() != nil || !manager.Expiry().IsZero() {
			t.Errorf("CABundle() = %q, Expiry() = %v, want neither", manager.CABundle(), manager.Expiry())
		}
	})
}

func TestInvalidOptions(t *testing.T) {
	registry := prometheus.NewRegistry()
	good := servingcert.Options{ServerName: names.ServerName(), Registerer: registry}
	if _, err := servingcert.New(newScript(nil), good); err != nil {
		t.Fatal(err)
	}
	for what, options := range map[string]servingcert.Options{
		"no server name":      {},
		"no client":           {ServerName: "a", WebhookConfiguration: configName},
		"nothing to accept":   {ServerName: "a", SelfCheck: servingcert.SelfCheck{Address: "127.0.0.1:1"}},
		"metrics taken twice": {ServerName: "a", Registerer: registry},
	} {
		if _, err := servingcert.New(newScript(nil), options); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
