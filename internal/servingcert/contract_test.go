package servingcert_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

const (
	secretName = "outrigger-injector-tls"
	// patience is how long a test waits for an expected event.
	patience = 30 * time.Second
)

// subject is an issuer with the source that it reads.
type subject struct {
	issuer servingcert.Issuer
	// source must be named in errors.
	source string
	// renew makes the source return a certificate of a new CA.
	renew func(t *testing.T)
	// touch causes an event of the source without a change.
	touch func(t *testing.T)
	// spoil makes the source invalid, mend undoes that.
	spoil, mend func(t *testing.T)
}

// subjects are all implementations of Issuer, each with its own source.
var subjects = map[string]func(*testing.T, kubernetes.Interface) subject{
	"OwnCA":  ownCASubject,
	"Secret": secretSubject,
	"Files":  filesSubject,
}

func TestIssuerContract(t *testing.T) {
	for name, newSubject := range subjects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issuerContract(t, func(t *testing.T) subject { return newSubject(t, fake.NewClientset()) })
		})
	}
}

// issuerContract checks what the Manager expects of every issuer.
func issuerContract(t *testing.T, newSubject func(*testing.T) subject) {
	t.Run("a client of each name accepts the certificate", func(t *testing.T) {
		material := issue(t, newSubject(t))
		server := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{material.Certificate}}
		for _, name := range dueNames {
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				if err := handshake(server, material.CABundle.Encode(), name, version); err != nil {
					t.Errorf("name %s, TLS %x: %v", name, version, err)
				}
			}
		}
	})

	t.Run("the bundle is the same each time", func(t *testing.T) {
		subject := newSubject(t)
		first, second := issue(t, subject), issue(t, subject)
		if !bytes.Equal(first.CABundle.Encode(), second.CABundle.Encode()) {
			t.Errorf("the CA bundle differs:\n%s\n%s", first.CABundle.Encode(), second.CABundle.Encode())
		}
	})

	t.Run("a change is announced, and only a change", func(t *testing.T) {
		subject := newSubject(t)
		before := issue(t, subject)
		changes := watch(t, subject)
		subject.touch(t)
		// Wait to check that nothing happens.
		time.Sleep(500 * time.Millisecond)
		if got := changes.Load(); got > 0 {
			t.Errorf("%d changes announced though there was none", got)
		}
		subject.renew(t)
		eventually(t, "the change is announced", func() bool { return changes.Load() > 0 })
		after := issue(t, subject)
		if before.Certificate.Leaf.Equal(after.Certificate.Leaf) {
			t.Error("the certificate is still the old one")
		}
		if err := verify(after); err != nil {
			t.Errorf("the new certificate: %v", err)
		}
	})

	t.Run("a useless source is an error that names it", func(t *testing.T) {
		subject := newSubject(t)
		issue(t, subject)
		changes := watch(t, subject)
		subject.spoil(t)
		eventually(t, "the change is announced", func() bool { return changes.Load() > 0 })
		material, err := subject.issuer.Issue(t.Context())
		if err == nil {
			t.Fatalf("issued %v of a useless source", material)
		}
		if !strings.Contains(err.Error(), subject.source) {
			t.Errorf("the error %q does not name %s", err, subject.source)
		}
		if strings.Contains(err.Error(), "-----BEGIN") {
			t.Errorf("the error %q holds PEM", err)
		}
		seen := changes.Load()
		subject.mend(t)
		eventually(t, "the repair is announced", func() bool { return changes.Load() > seen })
		if err := verify(issue(t, subject)); err != nil {
			t.Errorf("after the repair: %v", err)
		}
	})

	t.Run("an ended context ends Issue and Watch", func(t *testing.T) {
		subject := newSubject(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := background(func() { subject.issuer.Watch(ctx, func() {}) })
		cancel()
		issued := background(func() { _, _ = subject.issuer.Issue(ctx) })
		for what, done := range map[string]chan struct{}{"Watch": ended, "Issue": issued} {
			select {
			case <-done:
			case <-time.After(patience):
				t.Errorf("%s goes on after its context has ended", what)
			}
		}
	})
}

// background runs f and returns a channel that is closed when f has returned.
func background(f func()) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

func issue(t *testing.T, subject subject) servingcert.Material {
	t.Helper()
	material, err := subject.issuer.Issue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return material
}

// watch counts the changes that the issuer reports until the test ends.
func watch(t *testing.T, subject subject) *atomic.Int64 {
	t.Helper()
	var changes atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	ended := background(func() { subject.issuer.Watch(ctx, func() { changes.Add(1) }) })
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return &changes
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatalf("not within %s: %s", patience, what)
}

func verify(material servingcert.Material) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(material.CABundle.Encode())
	_, err := material.Certificate.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: names.ServerName()})
	return err
}

func ownCASubject(t *testing.T, client kubernetes.Interface) subject {
	s := secretSubjectOf(t, client)
	s.issuer = newOwnCA(t, client, 0, 0)
	s.renew = func(t *testing.T) {
		// The Secret of another CA is what another replica's rotation looks like.
		other := fake.NewClientset()
		if _, err := newOwnCA(t, other, 0, 0).Issue(t.Context()); err != nil {
			t.Fatal(err)
		}
		secret, err := other.CoreV1().Secrets(names.Namespace).Get(t.Context(), secretName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		changeSecret(t, client, func(live *corev1.Secret) { live.Data = secret.Data })
	}
	return s
}

func secretSubject(t *testing.T, client kubernetes.Interface) subject {
	s := secretSubjectOf(t, client)
	s.issuer = servingcert.NewSecretIssuer(client, names.Namespace, secretName)
	s.renew = func(t *testing.T) {
		data := pairData(t)
		changeSecret(t, client, func(live *corev1.Secret) { live.Data = data })
	}
	_, err := client.CoreV1().Secrets(names.Namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: secretName},
		Type:       corev1.SecretTypeTLS,
		Data:       pairData(t),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// secretSubjectOf is the common part of issuers that read a Secret.
func secretSubjectOf(t *testing.T, client kubernetes.Interface) subject {
	var key []byte
	return subject{
		source: names.Namespace + "/" + secretName,
		touch: func(t *testing.T) {
			changeSecret(t, client, func(live *corev1.Secret) { live.Annotations = map[string]string{"touched": "yes"} })
		},
		spoil: func(t *testing.T) {
			_, otherKey := newTestCA(t, time.Hour).issue(t, time.Hour)
			changeSecret(t, client, func(live *corev1.Secret) {
				key, live.Data[corev1.TLSPrivateKeyKey] = live.Data[corev1.TLSPrivateKeyKey], otherKey
			})
		},
		mend: func(t *testing.T) {
			changeSecret(t, client, func(live *corev1.Secret) { live.Data[corev1.TLSPrivateKeyKey] = key })
		},
	}
}

func pairData(t *testing.T) map[string][]byte {
	t.Helper()
	ca := newTestCA(t, time.Hour)
	cert, key := ca.issue(t, time.Hour)
	return map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, "ca.crt": ca.pem}
}

func changeSecret(t *testing.T, client kubernetes.Interface, change func(*corev1.Secret)) {
	t.Helper()
	secrets := client.CoreV1().Secrets(names.Namespace)
	secret, err := secrets.Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(secret)
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func filesSubject(t *testing.T, _ kubernetes.Interface) subject {
	dir := t.TempDir()
	files := servingcert.Files{
		Certificate: filepath.Join(dir, "tls.crt"),
		Key:         filepath.Join(dir, "tls.key"),
		CA:          filepath.Join(dir, "ca.crt"),
	}
	write := func(t *testing.T) {
		data := pairData(t)
		writeFile(t, files.Certificate, data[corev1.TLSCertKey])
		writeFile(t, files.Key, data[corev1.TLSPrivateKeyKey])
		writeFile(t, files.CA, data["ca.crt"])
	}
	write(t)
	return subject{
		issuer: servingcert.NewFileIssuer(files),
		source: files.Key,
		renew:  write,
		touch: func(t *testing.T) {
			if err := os.Chtimes(files.CA, time.Now(), time.Now()); err != nil {
				t.Fatal(err)
			}
		},
		spoil: func(t *testing.T) { writeFile(t, files.Key, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n")) },
		mend:  write,
	}
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
