package servingcert

import (
	"context"
	"fmt"
	"maps"
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
	// Namespace and Name are those of the Secret, which must be there, empty at first: who
	// may create Secrets can have a token of any service account of the namespace made.
	Namespace, Name string
	// Names are put into each serving certificate.
	Names Names
	// CALife is how long a CA is valid; 0 means a year.
	CALife time.Duration
	// LeafLife is how long a serving certificate is valid; 0 means 7 days. It is
	// at most a third of CALife, so that a CA is replaced before it would have to
	// shorten a serving certificate.
	LeafLife time.Duration
}

var _ Issuer = (*OwnCA)(nil)

// OwnCA signs serving certificates with an ECDSA P-256 CA that the replicas of
// the injector share through a Secret: tls.crt and tls.key are the CA that signs,
// ca.crt holds all CAs that are to be trusted. The first replica fills the empty
// Secret; the key of a serving certificate never leaves its replica.
//
// When less than a third of the CA's life is left, the next Issue of any replica
// puts a new CA into the Secret and keeps the old one in ca.crt until it has
// expired. A Secret that cannot be used is an error and is never overwritten.
type OwnCA struct {
	options OwnCAOptions
	source  secretSource
}

// NewOwnCA returns an OwnCA, or an error for names or lives that make no sense.
func NewOwnCA(options OwnCAOptions) (*OwnCA, error) {
	if err := options.Names.validate(); err != nil {
		return nil, err
	}
	if options.CALife == 0 {
		options.CALife = defaultCALife
	}
	if options.LeafLife == 0 {
		options.LeafLife = defaultLeafLife
	}
	if options.LeafLife < 0 || options.CALife < 3*options.LeafLife {
		return nil, fmt.Errorf("a serving certificate's life of %s is not within a third of its CA's life of %s", options.LeafLife, options.CALife)
	}
	return &OwnCA{
		options: options,
		source:  secretSource{client: options.Client, namespace: options.Namespace, name: options.Name},
	}, nil
}

// Issue makes a key and signs a certificate for it, after it has made or replaced
// the CA if that is due.
func (o *OwnCA) Issue(ctx context.Context) (Material, error) {
	now := time.Now()
	var ca *authority
	// Where another replica was quicker, its CA is the one to use.
	err := retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() (err error) {
		ca, err = o.authority(ctx, now)
		return err
	})
	if err != nil {
		return Material{}, err
	}
	return ca.issue(now, o.options.LeafLife, o.options.Names)
}

// Watch follows the Secret.
func (o *OwnCA) Watch(ctx context.Context, changed func()) {
	o.source.watch(ctx, changed)
}

// authority returns the CA of the Secret as it is due now.
func (o *OwnCA) authority(ctx context.Context, now time.Time) (*authority, error) {
	secret, err := o.source.get(ctx)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s does not exist: the injector fills it but may not create Secrets, so make it: kubectl create secret generic %s --namespace %s",
			&o.source, o.options.Name, o.options.Namespace)
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
		return nil, fmt.Errorf("%s holds no CA that can be used, put it right or empty it to have a new CA made: %w", &o.source, err)
	}
	due, err := ca.renewed(now, o.options.CALife)
	if err != nil || due == ca {
		return due, err
	}
	return due, o.update(ctx, secret, due)
}

// isEmpty reports whether there is nothing in a Secret yet.
func isEmpty(secret *corev1.Secret) bool {
	for _, value := range secret.Data {
		if len(value) > 0 {
			return false
		}
	}
	return true
}

// update writes the CA into the Secret unless somebody has changed it since it
// was read.
func (o *OwnCA) update(ctx context.Context, secret *corev1.Secret, ca *authority) error {
	data, err := secretData(ca)
	if err != nil {
		return err
	}
	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = make(map[string][]byte)
	}
	maps.Copy(secret.Data, data)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	updated, err := o.options.Client.CoreV1().Secrets(o.options.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("updating %s: %w", &o.source, err)
	}
	o.source.note(updated)
	return nil
}

func secretData(ca *authority) (map[string][]byte, error) {
	cert, key, trusted, err := ca.encode()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, keyCA: trusted}, nil
}
