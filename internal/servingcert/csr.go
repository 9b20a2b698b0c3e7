package servingcert

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	// rootCAConfigMap is where Kubernetes publishes the cluster's CA in every
	// namespace.
	rootCAConfigMap = "kube-root-ca.crt"

	defaultSigningTimeout = 5 * time.Minute
	shortestSignedLife    = 10 * time.Minute
)

// CSROptions configure a CSRIssuer.
type CSROptions struct {
	// Client needs create, get and delete on CertificateSigningRequests; with
	// Approve also update on their approval subresource and the verb approve on
	// the signer; without CAFile get, list and watch on the ConfigMap
	// kube-root-ca.crt.
	Client kubernetes.Interface
	// Names are requested. Their namespace is also that of the ConfigMap.
	Names Names
	// SignerName is the name of the signer, such as "example.com/webhooks".
	SignerName string
	// Approve makes the issuer approve its own request.
	Approve bool
	// Life is the lifetime of the certificate, at least 10 minutes; 0 means the
	// signer's default.
	Life time.Duration
	// Timeout is how long to wait for the certificate; 0 means 5 minutes.
	Timeout time.Duration
	// CAFile is a PEM file with the signer's CAs; empty means the ConfigMap
	// kube-root-ca.crt.
	CAFile string
	// Logger logs requests that could not be deleted; nil means slog.Default().
	Logger *slog.Logger
}

var _ Issuer = (*CSRIssuer)(nil)

// CSRIssuer requests each serving certificate from a signer of the cluster, through a
// CertificateSigningRequest of certificates.k8s.io/v1. The key is created in memory and
// stays there. The request is deleted after the answer or a failure.
type CSRIssuer struct {
	options CSROptions
	ca      lastRead
}

// NewCSRIssuer returns a CSRIssuer, or an error for invalid options.
func NewCSRIssuer(options CSROptions) (*CSRIssuer, error) {
	if err := options.Names.validate(); err != nil {
		return nil, err
	}
	if options.SignerName == "" {
		return nil, errors.New("a certificate signing request needs the name of a signer")
	}
	if options.Life != 0 && options.Life < shortestSignedLife {
		return nil, fmt.Errorf("the life of %s for a signed certificate is shorter than the %s that Kubernetes allows", options.Life, shortestSignedLife)
	}
	options.Timeout = cmp.Or(options.Timeout, defaultSigningTimeout)
	options.Logger = cmp.Or(options.Logger, slog.Default())
	return &CSRIssuer{options: options}, nil
}

// Issue creates a key and waits until the signer has signed a certificate for it.
func (c *CSRIssuer) Issue(ctx context.Context) (Material, error) {
	// Read the CA first: without it a certificate is useless.
	ca, err := c.readCA(ctx)
	c.ca.set(ca)
	if err != nil {
		return Material{}, err
	}
	key, err := pki.NewKey()
	if err != nil {
		return Material{}, err
	}
	dns, ips := c.options.Names.sans()
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: c.options.Names.commonName()},
		DNSNames:    dns,
		IPAddresses: ips,
	}, key)
	if err != nil {
		return Material{}, fmt.Errorf("creating a certificate request: %w", err)
	}
	chain, err := c.sign(ctx, request)
	if err != nil {
		return Material{}, err
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		return Material{}, err
	}
	material, err := newMaterial(chain, text, ca)
	if err != nil {
		return Material{}, fmt.Errorf("the certificate from signer %s with the CA from %s cannot be used: %w", c.options.SignerName, c.caSource(), err)
	}
	return material, nil
}

// Watch watches the signer's CAs.
func (c *CSRIssuer) Watch(ctx context.Context, changed func()) {
	if c.options.CAFile != "" {
		watchFiles(ctx, []string{c.options.CAFile}, func() {
			if ca, _ := os.ReadFile(c.options.CAFile); c.ca.differs(ca) {
				changed()
			}
		})
		return
	}
	namespace := c.options.Names.Namespace
	informer := coreinformers.NewFilteredConfigMapInformer(c.options.Client, namespace, 0, cache.Indexers{}, byName(rootCAConfigMap))
	runInformer(ctx, informer, func() {
		var ca []byte
		if configMap := stored[corev1.ConfigMap](informer, namespace+"/"+rootCAConfigMap); configMap != nil {
			ca = []byte(configMap.Data[keyCA])
		}
		if c.ca.differs(ca) {
			changed()
		}
	})
}

func (c *CSRIssuer) caSource() string {
	if c.options.CAFile != "" {
		return "file " + c.options.CAFile
	}
	return "ConfigMap " + c.options.Names.Namespace + "/" + rootCAConfigMap
}

func (c *CSRIssuer) readCA(ctx context.Context) ([]byte, error) {
	if c.options.CAFile != "" {
		ca, err := os.ReadFile(c.options.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of signer %s: %w", c.options.SignerName, err)
		}
		return ca, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	configMap, err := c.options.Client.CoreV1().ConfigMaps(c.options.Names.Namespace).Get(ctx, rootCAConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the CA of signer %s from %s, for which a file can be used instead: %w", c.options.SignerName, c.caSource(), err)
	}
	return []byte(configMap.Data[keyCA]), nil
}

// sign gets the request signed and returns the chain as PEM.
func (c *CSRIssuer) sign(ctx context.Context, request []byte) ([]byte, error) {
	requests := c.options.Client.CertificatesV1().CertificateSigningRequests()
	names := c.options.Names
	csr := &certificatesv1.CertificateSigningRequest{
		// Use a unique name: a leftover request of an ended process is for a key that
		// no longer exists.
		ObjectMeta: metav1.ObjectMeta{Name: names.Service + "." + names.Namespace + "-" + strings.ToLower(rand.Text())},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pki.EncodeRequest(request),
			SignerName: c.options.SignerName,
			Usages: []certificatesv1.KeyUsage{
				certificatesv1.UsageDigitalSignature,
				certificatesv1.UsageKeyEncipherment,
				certificatesv1.UsageServerAuth,
			},
		},
	}
	if c.options.Life != 0 {
		seconds := int32(min(c.options.Life/time.Second, 1<<31-1))
		csr.Spec.ExpirationSeconds = &seconds
	}
	creating, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := requests.Create(creating, csr, metav1.CreateOptions{}); err != nil {
		if creating.Err() != nil {
			// The API server may have created it nevertheless.
			c.remove(ctx, csr.Name)
		}
		return nil, fmt.Errorf("creating CertificateSigningRequest %s: %w", csr.Name, err)
	}
	defer c.remove(ctx, csr.Name)
	return c.await(ctx, csr.Name)
}

// await waits for the certificate of the request. It polls, so it only needs the right to
// get requests.
func (c *CSRIssuer) await(ctx context.Context, name string) ([]byte, error) {
	var chain []byte
	var lastFault error
	err := wait.PollUntilContextTimeout(ctx, time.Second, c.options.Timeout, true, func(ctx context.Context) (bool, error) {
		csr, err := c.options.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			lastFault = err
			return false, unlessTransient(err)
		}
		lastFault = nil
		approved := false
		for _, condition := range csr.Status.Conditions {
			switch condition.Type {
			case certificatesv1.CertificateApproved:
				approved = true
			case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
				return false, fmt.Errorf("%s by signer %s: %s: %s", strings.ToLower(string(condition.Type)), c.options.SignerName, condition.Reason, condition.Message)
			}
		}
		if c.options.Approve && !approved {
			lastFault = c.approve(ctx, csr)
			return false, unlessTransient(lastFault)
		}
		chain = csr.Status.Certificate
		return len(chain) > 0, nil
	})
	switch {
	case err == nil:
		return chain, nil
	case !wait.Interrupted(err):
		return nil, fmt.Errorf("CertificateSigningRequest %s: %w", name, err)
	case lastFault != nil:
		return nil, fmt.Errorf("CertificateSigningRequest %s: %w", name, lastFault)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("CertificateSigningRequest %s: %w", name, ctx.Err())
	default:
		return nil, fmt.Errorf("CertificateSigningRequest %s: signer %s returned no certificate within %s; check that it runs and that the request is approved", name, c.options.SignerName, c.options.Timeout)
	}
}

func (c *CSRIssuer) approve(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type:    certificatesv1.CertificateApproved,
		Status:  corev1.ConditionTrue,
		Reason:  "OutriggerInjector",
		Message: "The injector approves the request for its own serving certificate.",
	})
	_, err := c.options.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("approving the request: %w", err)
	}
	return nil
}

// unlessTransient returns the error unless a retry may help.
func unlessTransient(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) {
		return err
	}
	return nil
}

func (c *CSRIssuer) remove(ctx context.Context, name string) {
	// Delete the request even if the process is shutting down.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := c.options.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.options.Logger.Warn("cannot delete a certificate signing request", "name", name, "error", err)
	}
}
