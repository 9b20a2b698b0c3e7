package servingcert

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const (
	defaultCALife   = 365 * 24 * time.Hour
	defaultLeafLife = 7 * 24 * time.Hour
)

// OwnCAOptions configure an OwnCA.
type OwnCAOptions struct {
	// Client needs get, list, watch and update on the Secret.
	Client kubernetes.Interface
	// Namespace and Name are those of the Secret. It must exist, empty at first, because
	// the right to create Secrets would allow creating tokens of any service account of
	// the namespace.
	Namespace, Name string
	// Names are the names in each serving certificate.
	Names Names
	// CALife is the lifetime of a CA; 0 means a year.
	CALife time.Duration
	// LeafLife is the lifetime of a serving certificate; 0 means 7 days. It must be at
	// most a third of CALife, so that a CA is replaced before it would have to shorten a
	// serving certificate.
	LeafLife time.Duration
}

var _ Issuer = (*OwnCA)(nil)

// OwnCA signs serving certificates with an ECDSA P-256 CA that the injector's replicas
// share through a Secret: tls.crt and tls.key are the signing CA, and ca.crt contains all
// CAs to trust. The first replica fills the empty Secret. The key of a serving certificate
// never leaves its replica.
//
// When less than a third of the CA's lifetime is left, the next Issue of any replica puts
// a new CA into the Secret and keeps the old one in ca.crt until it has expired. A Secret
// with invalid content is an error and is never overwritten.
type OwnCA struct {
	secretSource
	options OwnCAOptions
}

// NewOwnCA returns an OwnCA, or an error for invalid names or lifetimes.
func NewOwnCA(options OwnCAOptions) (*OwnCA, error) {
	if err := options.Names.validate(); err != nil {
		return nil, err
	}
	options.CALife = cmp.Or(options.CALife, defaultCALife)
	options.LeafLife = cmp.Or(options.LeafLife, defaultLeafLife)
	if options.LeafLife < 0 || options.CALife < 3*options.LeafLife {
		return nil, fmt.Errorf("a serving certificate's lifetime of %s is more than a third of its CA's lifetime of %s", options.LeafLife, options.CALife)
	}
	return &OwnCA{secretSource{client: options.Client, namespace: options.Namespace, name: options.Name}, options}, nil
}

// Issue creates a key and signs a certificate for it. If necessary it creates or replaces
// the CA first.
func (o *OwnCA) Issue(ctx context.Context) (Material, error) {
	now := time.Now()
	var ca *authority
	// If another replica was faster, use its CA.
	err := retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() (err error) {
		ca, err = o.authority(ctx, now)
		return err
	})
	if err != nil {
		return Material{}, err
	}
	return ca.issue(now, o.options.LeafLife, o.options.Names)
}

// authority returns the CA of the Secret, created or renewed if necessary.
func (o *OwnCA) authority(ctx context.Context, now time.Time) (*authority, error) {
	secret, err := o.get(ctx)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist: the injector fills it but may not create Secrets, so create it: kubectl create secret generic %s --namespace %s",
			o, o.options.Name, o.options.Namespace)
	}
	if err != nil {
		return nil, err
	}
	if isEmpty(secret) {
		ca, err := newAuthority(o.options.CALife)
		if err != nil {
			return nil, err
		}
		return ca, o.update(ctx, secret, ca)
	}
	ca, err := parseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[keyCA])
	if err != nil {
		return nil, fmt.Errorf("%s contains no usable CA, fix it or empty it so that a new CA is created: %w", o, err)
	}
	due, err := ca.renewed(now, o.options.CALife)
	if err != nil || due == ca {
		return due, err
	}
	return due, o.update(ctx, secret, due)
}

// isEmpty reports whether a Secret has no data, or only empty values.
func isEmpty(secret *corev1.Secret) bool {
	for _, value := range secret.Data {
		if len(value) > 0 {
			return false
		}
	}
	return true
}

// update writes the CA to the Secret unless it has changed since it was read.
func (o *OwnCA) update(ctx context.Context, secret *corev1.Secret, ca *authority) error {
	cert, key, trusted, err := ca.encode()
	if err != nil {
		return err
	}
	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = make(map[string][]byte)
	}
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[keyCA] = cert, key, trusted
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	updated, err := o.options.Client.CoreV1().Secrets(o.options.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("updating %s: %w", o, err)
	}
	o.note(updated)
	return nil
}
