package servingcert_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// newOwnCA creates the empty Secret, as the chart does, and an OwnCA that fills it.
func newOwnCA(t testing.TB, client kubernetes.Interface, caLife, leafLife time.Duration) *servingcert.OwnCA {
	t.Helper()
	makeSecret(t, client)
	return ownCA(t, client, caLife, leafLife)
}

// makeSecret creates the Secret unless it exists.
func makeSecret(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	_, err := client.CoreV1().Secrets(names.Namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: secretName},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// newClient returns a fake client that rejects conflicting updates of Secrets, as an API
// server does.
func newClient() *fake.Clientset {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	client.PrependReactor("update", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		update := action.(clienttesting.UpdateAction)
		secret := update.GetObject().(*corev1.Secret).DeepCopy()
		live, err := client.Tracker().Get(update.GetResource(), secret.Namespace, secret.Name)
		if err != nil {
			return true, nil, err
		}
		if live.(*corev1.Secret).ResourceVersion != secret.ResourceVersion {
			return true, nil, apierrors.NewConflict(update.GetResource().GroupResource(), secret.Name, errors.New("it has changed"))
		}
		version++
		secret.ResourceVersion = fmt.Sprint("update-", version)
		return true, secret, client.Tracker().Update(update.GetResource(), secret, secret.Namespace)
	})
	return client
}

func ownCA(t testing.TB, client kubernetes.Interface, caLife, leafLife time.Duration) *servingcert.OwnCA {
	t.Helper()
	issuer, err := servingcert.NewOwnCA(servingcert.OwnCAOptions{
		Client:    client,
		Namespace: names.Namespace,
		Name:      secretName,
		Names:     names,
		CALife:    caLife,
		LeafLife:  leafLife,
	})
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

func caSecret(t testing.TB, client kubernetes.Interface) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets(names.Namespace).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func TestOwnCADefaults(t *testing.T) {
	client := newClient()
	material := issue(t, subject{issuer: newOwnCA(t, client, 0, 0)})
	leaf := material.Certificate.Leaf
	if life := time.Until(leaf.NotAfter).Round(time.Hour); life != 7*day {
		t.Errorf("the serving certificate lives %s, want 7 days", life)
	}
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is a %T, want ECDSA P-256", leaf.PublicKey)
	}
	got := append([]string{}, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		got = append(got, ip.String())
	}
	if diff := cmp.Diff(dueNames, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	secret := caSecret(t, client)
	if !bytes.Equal(secret.Data["ca.crt"], material.CABundle.Encode()) || !bytes.Equal(secret.Data["tls.crt"], material.CABundle.Encode()) {
		t.Error("the Secret does not hold the CA of the certificate")
	}
}

// TestReplicasAgreeOnCA checks that replicas that start together agree on one CA.
func TestReplicasAgreeOnCA(t *testing.T) {
	replicasAgree(t, newClient())
}

// TestCAOfOtherReplica checks that a replica takes the CA of another one that was faster.
func TestCAOfOtherReplica(t *testing.T) {
	resource := schema.GroupResource{Resource: "secrets"}
	for what, test := range map[string]struct {
		verb  string
		fault error
		age   time.Duration
	}{
		"when the CA is made":     {verb: "update", fault: apierrors.NewConflict(resource, secretName, nil)},
		"when the CA is replaced": {verb: "update", fault: apierrors.NewConflict(resource, secretName, nil), age: 250 * day},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClient()
				if test.age > 0 {
					issue(t, subject{issuer: newOwnCA(t, client, 300*day, 7*day)})
					time.Sleep(test.age)
				}
				faults := 1
				client.PrependReactor(test.verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
					faults--
					return faults >= 0, nil, test.fault
				})
				material := issue(t, subject{issuer: newOwnCA(t, client, 300*day, 7*day)})
				if !bytes.Equal(material.CABundle.Encode(), caSecret(t, client).Data["ca.crt"]) {
					t.Error("the replica uses another CA than that of the Secret")
				}
			})
		})
	}
}

// replicasAgree starts several replicas on one Secret that is still empty.
func replicasAgree(t *testing.T, client kubernetes.Interface) {
	var running sync.WaitGroup
	makeSecret(t, client)
	bundles := make([][]byte, 8)
	for i := range bundles {
		issuer := ownCA(t, client, 0, 0)
		running.Go(func() {
			material, err := issuer.Issue(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if err := verify(material); err != nil {
				t.Error(err)
			}
			bundles[i] = material.CABundle.Encode()
		})
	}
	running.Wait()
	for _, bundle := range bundles {
		if !bytes.Equal(bundle, caSecret(t, client).Data["ca.crt"]) {
			t.Errorf("a replica uses another CA than that of the Secret:\n%s", bundle)
		}
	}
}

// TestOwnCARenewal checks that the CA is replaced before it expires.
func TestOwnCARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient()
		issuer := subject{issuer: newOwnCA(t, client, 300*day, 7*day)}
		first := issue(t, issuer)

		time.Sleep(195 * day)
		if same := issue(t, issuer); !bytes.Equal(same.CABundle.Encode(), first.CABundle.Encode()) {
			t.Error("the CA was replaced with more than a third of its life left")
		}
		time.Sleep(6 * day)
		second := issue(t, issuer)
		if got := len(serials(t, second.CABundle.Encode())); got != 2 {
			t.Errorf("the bundle holds %d CAs, want the new and the old", got)
		}
		if err := verify(second); err != nil {
			t.Error(err)
		}
		alone := second
		alone.CABundle = first.CABundle
		if err := verify(alone); err == nil {
			t.Error("the certificate is still signed by the old CA")
		}
		if again := issue(t, issuer); !bytes.Equal(again.CABundle.Encode(), second.CABundle.Encode()) {
			t.Error("the CA was replaced once more")
		}

		time.Sleep(100 * day)
		last := issue(t, issuer)
		if diff := cmp.Diff(serials(t, caSecret(t, client).Data["tls.crt"]), serials(t, last.CABundle.Encode())); diff != "" {
			t.Errorf("the expired CA is still trusted (-want +got):\n%s", diff)
		}
		if !bytes.Equal(caSecret(t, client).Data["ca.crt"], last.CABundle.Encode()) {
			t.Error("the Secret holds another bundle")
		}
	})
}

// TestExpiredOwnCA checks that an expired CA is replaced.
func TestExpiredOwnCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issuer := subject{issuer: newOwnCA(t, newClient(), 300*day, 7*day)}
		issue(t, issuer)
		time.Sleep(400 * day)
		material := issue(t, issuer)
		if err := verify(material); err != nil {
			t.Error(err)
		}
		if got := len(serials(t, material.CABundle.Encode())); got != 1 {
			t.Errorf("the bundle holds %d CAs, want the new one alone", got)
		}
	})
}

// TestOwnCAKeepsOtherData checks that other data of the Secret is kept.
func TestOwnCAKeepsOtherData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient()
		issuer := subject{issuer: newOwnCA(t, client, 300*day, 7*day)}
		issue(t, issuer)
		changeSecret(t, client, func(live *corev1.Secret) {
			live.Annotations = map[string]string{"note": "keep"}
			live.Data["extra"] = []byte("keep")
		})
		time.Sleep(250 * day)
		issue(t, issuer)
		secret := caSecret(t, client)
		if secret.Annotations["note"] != "keep" || string(secret.Data["extra"]) != "keep" {
			t.Errorf("lost by the rotation: annotations %v, extra %q", secret.Annotations, secret.Data["extra"])
		}
	})
}

// TestOwnCAWithoutSecret checks that the injector does not need the right to create
// Secrets, which would allow creating tokens of other service accounts.
func TestOwnCAWithoutSecret(t *testing.T) {
	client := newClient()
	issuer := subject{issuer: ownCA(t, client, 0, 0)}
	_, err := issuer.issuer.Issue(t.Context())
	if want := "kubectl create secret generic " + secretName + " --namespace " + names.Namespace; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without a Secret the error is %v, want that it says %q", err, want)
	}
	makeSecret(t, client)
	issue(t, issuer)
	first := caSecret(t, client)

	// To empty it is the way to another CA, and a Secret of type kubernetes.io/tls is
	// empty with its two keys.
	for _, empty := range []map[string][]byte{nil, {"tls.crt": nil, "tls.key": nil}} {
		changeSecret(t, client, func(live *corev1.Secret) { live.Data = empty })
		issue(t, issuer)
		if bytes.Equal(first.Data["tls.crt"], caSecret(t, client).Data["tls.crt"]) {
			t.Error("the emptied Secret has the same CA again")
		}
	}
	for _, action := range client.Actions() {
		if action.GetVerb() == "create" && action.(clienttesting.CreateAction).GetObject().(*corev1.Secret).Data != nil {
			t.Errorf("a Secret was created: %v", action)
		}
	}
}

// TestDamagedCASecret checks that a damaged CA is an error and is not changed.
func TestDamagedCASecret(t *testing.T) {
	leaf := pairData(t)
	ca := newTestCA(t, time.Hour)
	for what, damage := range map[string]func(map[string][]byte){
		"no bundle":           func(data map[string][]byte) { delete(data, "ca.crt") },
		"no key":              func(data map[string][]byte) { delete(data, "tls.key") },
		"another key":         func(data map[string][]byte) { data["tls.key"] = leaf["tls.key"] },
		"not PEM":             func(data map[string][]byte) { data["tls.crt"] = []byte("certificate") },
		"cut off":             func(data map[string][]byte) { data["tls.crt"] = data["tls.crt"][:100] },
		"another CA's bundle": func(data map[string][]byte) { data["ca.crt"] = ca.pem },
		"a key in the bundle": func(data map[string][]byte) { data["ca.crt"] = append(data["ca.crt"], data["tls.key"]...) },
		"not a CA": func(data map[string][]byte) {
			data["tls.crt"], data["tls.key"], data["ca.crt"] = leaf["tls.crt"], leaf["tls.key"], leaf["tls.crt"]
		},
		"garbled DER in bundle": func(data map[string][]byte) { data["ca.crt"] = certificatePEM([]byte("garbled")) },
	} {
		t.Run(what, func(t *testing.T) {
			client := newClient()
			issuer := newOwnCA(t, client, 0, 0)
			issue(t, subject{issuer: issuer})
			changeSecret(t, client, func(live *corev1.Secret) { damage(live.Data) })
			before := caSecret(t, client)

			_, err := issuer.Issue(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range []string{"Secret " + names.Namespace + "/" + secretName, "empty it"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "-----BEGIN") {
				t.Errorf("the error %q holds PEM", err)
			}
			if diff := cmp.Diff(before.Data, caSecret(t, client).Data); diff != "" {
				t.Errorf("the Secret was changed:\n%s", diff)
			}
		})
	}
}

func TestOwnCAInvalidOptions(t *testing.T) {
	for what, options := range map[string]servingcert.OwnCAOptions{
		"no names":             {},
		"name with a dot":      {Names: servingcert.Names{Service: "a.b", Namespace: "c"}},
		"bad cluster domain":   {Names: servingcert.Names{Service: "a", Namespace: "c", ClusterDomain: "-"}},
		"bad extra name":       {Names: servingcert.Names{Service: "a", Namespace: "c", Extra: []string{"a b"}}},
		"leaf outlives its CA": {Names: names, CALife: day, LeafLife: 9 * time.Hour},
		"negative life":        {Names: names, LeafLife: -1},
	} {
		if _, err := servingcert.NewOwnCA(options); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestLongNames checks certificates for names that are too long for a common name.
func TestLongNames(t *testing.T) {
	long := servingcert.Names{Service: strings.Repeat("s", 63), Namespace: strings.Repeat("n", 63)}
	client := newClient()
	makeSecret(t, client)
	issuer, err := servingcert.NewOwnCA(servingcert.OwnCAOptions{Client: client, Namespace: "mesh", Name: secretName, Names: long})
	if err != nil {
		t.Fatal(err)
	}
	leaf := issue(t, subject{issuer: issuer}).Certificate.Leaf
	if leaf.Subject.CommonName != "" {
		t.Errorf("common name %q", leaf.Subject.CommonName)
	}
	if err := leaf.VerifyHostname(long.ServerName()); err != nil {
		t.Error(err)
	}
}

// Tests everything together on a fake clock: in every second, clients that read the
// configuration at any time within the propagation delay can connect.
func TestOwnCARunsWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(webhookConfiguration(nil, nil))
		replicas := make([]*servingcert.Manager, 2)
		for i := range replicas {
			replicas[i], _ = start(t, newOwnCA(t, client, 90*time.Minute, 30*time.Minute), patching(client))
		}
		var recent [][]byte // the bundles of the last seconds, the newest first
		checked := map[string]bool{}
		certificates, authorities := map[string]bool{}, map[string]bool{}
		for range 4 * 3600 {
			recent = slices.Insert(recent, 0, bundlesIn(t, client)[0])
			recent = recent[:min(len(recent), int(delay/time.Second))]
			for ca := range serials(t, recent[0]) {
				authorities[ca] = true
			}
			for _, replica := range replicas {
				certificate := servedBy(t, replica)
				certificates[certificate] = true
				if !time.Now().Before(replica.Expiry()) {
					t.Fatalf("%s: the certificate has expired", time.Now())
				}
				for age, bundle := range recent {
					if pair := certificate + string(bundle); !checked[pair] {
						checked[pair] = true
						if err := handshake(replica.TLSConfig(), bundle, names.ServerName(), tls.VersionTLS13); err != nil {
							t.Fatalf("%s, a bundle %d s old: %v", time.Now(), age, err)
						}
					}
				}
			}
			time.Sleep(time.Second)
		}
		if len(certificates) < 20 || len(authorities) < 4 {
			t.Errorf("%d certificates of %d CAs in four hours", len(certificates), len(authorities))
		}
	})
}
