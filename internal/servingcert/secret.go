package servingcert

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// requestTimeout is the timeout of one request to the API server. The client has none by
// default.
const requestTimeout = 30 * time.Second

// keyCA is the key of a CA bundle in a Secret.
const keyCA = "ca.crt"

var _ Issuer = (*SecretIssuer)(nil)

// SecretIssuer reads the serving certificate from a kubernetes.io/tls Secret that another
// program such as cert-manager updates: tls.crt, tls.key and ca.crt. It only needs get,
// list and watch on that Secret.
type SecretIssuer struct{ secretSource }

// NewSecretIssuer returns an issuer that reads the Secret.
func NewSecretIssuer(client kubernetes.Interface, namespace, name string) *SecretIssuer {
	return &SecretIssuer{secretSource{client: client, namespace: namespace, name: name}}
}

// Issue returns the content of the Secret.
func (s *SecretIssuer) Issue(ctx context.Context) (Material, error) {
	secret, err := s.get(ctx)
	if apierrors.IsNotFound(err) {
		return Material{}, fmt.Errorf("%s does not exist yet: the issuer of the certificate, such as a cert-manager Certificate with this secretName, has not created it", s)
	}
	if err != nil {
		return Material{}, err
	}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, keyCA} {
		if len(secret.Data[key]) == 0 {
			return Material{}, fmt.Errorf("%s has no %s; it must contain a certificate, its key and the CA that signed it", s, key)
		}
	}
	material, err := newMaterial(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[keyCA])
	if err != nil {
		return Material{}, fmt.Errorf("%s cannot be used, fix it or issue the certificate again: %w", s, err)
	}
	return material, nil
}

// secretSource reads one Secret and detects changes of its data.
type secretSource struct {
	client          kubernetes.Interface
	namespace, name string
	read            lastRead
}

func (s *secretSource) String() string {
	return "Secret " + s.namespace + "/" + s.name
}

func (s *secretSource) get(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret, err := s.client.CoreV1().Secrets(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		s.note(nil)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s, err)
	}
	s.note(secret)
	return secret, nil
}

// note records the Secret as read; nil means that it does not exist.
func (s *secretSource) note(secret *corev1.Secret) {
	s.read.set(certificateData(secret)...)
}

// Watch watches the Secret.
func (s *secretSource) Watch(ctx context.Context, changed func()) {
	informer := coreinformers.NewFilteredSecretInformer(s.client, s.namespace, 0, cache.Indexers{}, byName(s.name))
	runInformer(ctx, informer, func() {
		secret := stored[corev1.Secret](informer, s.namespace+"/"+s.name)
		if s.read.differs(certificateData(secret)...) {
			changed()
		}
	})
}

func certificateData(secret *corev1.Secret) [][]byte {
	if secret == nil {
		return nil
	}
	return [][]byte{secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[keyCA]}
}
