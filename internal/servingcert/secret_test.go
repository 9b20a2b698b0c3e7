package servingcert_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// TestUnusableSecret checks the errors of Secrets that cannot be used.
func TestUnusableSecret(t *testing.T) {
	good := pairData(t)
	for what, test := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"not there": {nil, "does not exist yet"},
		"no key":    {map[string][]byte{"tls.crt": good["tls.crt"], "ca.crt": good["ca.crt"]}, "has no tls.key"},
		// An ACME issuer of cert-manager gives none.
		"no CA":       {map[string][]byte{"tls.crt": good["tls.crt"], "tls.key": good["tls.key"]}, "has no ca.crt"},
		"CA not PEM":  {map[string][]byte{"tls.crt": good["tls.crt"], "tls.key": good["tls.key"], "ca.crt": []byte("x")}, "CA bundle: there is no PEM certificate"},
		"key as CA":   {map[string][]byte{"tls.crt": good["tls.crt"], "tls.key": good["tls.key"], "ca.crt": good["tls.key"]}, `"PRIVATE KEY" among the certificates`},
		"empty chain": {map[string][]byte{"tls.crt": []byte("\n"), "tls.key": good["tls.key"], "ca.crt": good["ca.crt"]}, "certificate and key"},
	} {
		t.Run(what, func(t *testing.T) {
			client := fake.NewClientset()
			if test.data != nil {
				client = fake.NewClientset(&corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: secretName},
					Data:       test.data,
				})
			}
			_, err := servingcert.NewSecretIssuer(client, names.Namespace, secretName).Issue(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), names.Namespace+"/"+secretName) {
				t.Errorf("the error %v does not say %q of Secret %s/%s", err, test.want, names.Namespace, secretName)
			}
		})
	}
}

// TestBundleOrder checks that the bundle does not depend on the order of its source.
func TestBundleOrder(t *testing.T) {
	first, second, third := newTestCA(t, time.Hour), newTestCA(t, time.Hour), newTestCA(t, time.Hour)
	cert, key := second.issue(t, time.Hour)
	bundles := map[string]bool{}
	for _, source := range [][]byte{
		pemOf(first, second, third),
		pemOf(third, second, first),
		pemOf(second, third, second, first, first),
		slices.Concat([]byte("# first\n"), pemOf(first), []byte("\n# the others\n"), pemOf(third, second)),
	} {
		client := fake.NewClientset(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: secretName},
			Data:       map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": source},
		})
		material := issue(t, subject{issuer: servingcert.NewSecretIssuer(client, names.Namespace, secretName)})
		bundles[string(material.CABundle.Encode())] = true
	}
	if len(bundles) != 1 {
		t.Errorf("%d different bundles of the same CAs", len(bundles))
	}
}
