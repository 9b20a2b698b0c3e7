package issuer

import (
	"cmp"
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// CertManagerGroup is the API group of cert-manager and of its own issuers.
const CertManagerGroup = "cert-manager.io"

var certificateRequests = schema.GroupVersionResource{Group: CertManagerGroup, Version: "v1", Resource: "certificaterequests"}

// CertManagerOptions say which of cert-manager's issuers signs.
type CertManagerOptions struct {
	// Client makes, gets, watches and deletes CertificateRequests.
	Client dynamic.Interface
	// Namespace is where the requests are made; that of the Issuer, if it is one.
	Namespace string
	// IssuerName is the issuer's name. IssuerKind is Issuer, ClusterIssuer or a kind
	// that IssuerGroup has; Issuer if empty. IssuerGroup is CertManagerGroup if empty.
	IssuerName, IssuerKind, IssuerGroup string
	// Log hears of requests that could not be deleted. Nil is slog.Default.
	Log *slog.Logger
}

// CertManager has certificates signed by cert-manager, by one CertificateRequest each,
// which it deletes afterwards. The CSR goes there as it is, so it must ask for exactly
// the request's names. Who approves requests is the cluster's matter: cert-manager
// itself does for its own kinds of issuers, unless it is told not to.
type CertManager struct {
	options CertManagerOptions
	remote  *remote
}

var _ Issuer = (*CertManager)(nil)

// String says which issuer it is, for logs and errors.
func (c *CertManager) String() string { return c.remote.name }

// NewCertManager returns the issuer. It asks nothing of the cluster yet.
func NewCertManager(o CertManagerOptions) (*CertManager, error) {
	o.IssuerKind = cmp.Or(o.IssuerKind, "Issuer")
	o.IssuerGroup = cmp.Or(o.IssuerGroup, CertManagerGroup)
	if o.Client == nil || o.Namespace == "" || o.IssuerName == "" {
		return nil, fmt.Errorf("cert-manager: a client, a namespace and an issuer's name are needed, not %q and %q", o.Namespace, o.IssuerName)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	name := fmt.Sprintf("cert-manager %s %s", o.IssuerKind, o.IssuerName)
	if o.IssuerGroup != CertManagerGroup {
		name = fmt.Sprintf("cert-manager %s.%s %s", o.IssuerKind, o.IssuerGroup, o.IssuerName)
	}
	c := &CertManager{options: o}
	c.remote = newRemote(name, c.sign)
	return c, nil
}

// Issue makes a CertificateRequest and waits until it is signed or refused, or ctx
// ends; give it a deadline. An answer that is not what was asked for is an error.
func (c *CertManager) Issue(ctx context.Context, req Request) ([]byte, error) {
	return c.remote.issue(ctx, req)
}

// Roots returns the root that cert-manager names beside each certificate (status.ca),
// and earlier ones as long as certificates of theirs are valid. Where it has heard of
// none for ten minutes, it has a certificate signed that nobody uses.
func (c *CertManager) Roots(ctx context.Context) ([]byte, error) { return c.remote.roots(ctx) }

// certificateRequest is what we write and read of cert-manager's type.
type certificateRequest struct {
	Spec   certificateRequestSpec   `json:"spec"`
	Status certificateRequestStatus `json:"status,omitzero"`
}

type certificateRequestSpec struct {
	Duration  string    `json:"duration"`
	IssuerRef issuerRef `json:"issuerRef"`
	Request   []byte    `json:"request"`
	Usages    []string  `json:"usages"`
}

type issuerRef struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Group string `json:"group"`
}

type certificateRequestStatus struct {
	Conditions []struct {
		Type    string `json:"type"`
		Status  string `json:"status"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"conditions,omitempty"`
	Certificate []byte `json:"certificate,omitempty"`
	CA          []byte `json:"ca,omitempty"`
}

// sign has one request signed.
func (c *CertManager) sign(ctx context.Context, req Request) (answer, error) {
	object, err := c.object(req)
	if err != nil {
		return answer{}, err
	}
	requests := c.options.Client.Resource(certificateRequests).Namespace(c.options.Namespace)
	made, err := requests.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return answer{}, c.apiError(ctx, "making a CertificateRequest in namespace "+c.options.Namespace, err)
	}
	defer c.remove(ctx, requests, made.GetName())
	status, err := c.wait(ctx, requests, made.GetName())
	if err != nil {
		return answer{}, err
	}
	return answer{certificates: status.Certificate, ca: status.CA}, nil
}

func (c *CertManager) object(req Request) (*unstructured.Unstructured, error) {
	usages := []string{"digital signature", "server auth", "client auth"}
	if _, ok := req.CSR.PublicKey.(*rsa.PublicKey); ok {
		usages = append(usages, "key encipherment")
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&certificateRequest{Spec: certificateRequestSpec{
		Duration:  req.Life.String(),
		IssuerRef: issuerRef{c.options.IssuerName, c.options.IssuerKind, c.options.IssuerGroup},
		Request:   pki.EncodeRequest(req.CSR.Raw),
		Usages:    usages,
	}})
	if err != nil {
		return nil, fmt.Errorf("writing a CertificateRequest: %w", err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetAPIVersion(certificateRequests.GroupVersion().String())
	object.SetKind("CertificateRequest")
	object.SetGenerateName("outrigger-")
	object.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "outrigger"})
	return object, nil
}

// wait returns the status of a request that is signed.
func (c *CertManager) wait(ctx context.Context, requests dynamic.ResourceInterface, name string) (certificateRequestStatus, error) {
	last := "nobody has said anything about it; is cert-manager running, and does it approve requests for this issuer?"
	// look says whether the request is decided.
	look := func(object *unstructured.Unstructured) (certificateRequestStatus, bool, error) {
		var request certificateRequest
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &request); err != nil {
			return request.Status, false, fmt.Errorf("reading the CertificateRequest %s: %w", name, err)
		}
		for _, condition := range request.Status.Conditions {
			says := fmt.Sprintf("%s (%s): %s", condition.Type, condition.Reason, condition.Message)
			switch {
			case condition.Status == "True" && (condition.Type == "Denied" || condition.Type == "InvalidRequest"),
				condition.Type == "Ready" && condition.Status == "False" && (condition.Reason == "Failed" || condition.Reason == "Denied"):
				return request.Status, false, fmt.Errorf("it refused the CertificateRequest: %s", says)
			case condition.Type == "Ready" && condition.Status == "True":
				return request.Status, len(request.Status.Certificate) > 0, nil
			case condition.Type == "Ready":
				last = says
			}
		}
		return request.Status, false, nil
	}
	timeout := func() error {
		err := ended(ctx)
		if !errors.Is(err, ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w; the last about the CertificateRequest: %s", err, last)
	}
	for {
		object, err := requests.Get(ctx, name, metav1.GetOptions{})
		if ctx.Err() != nil {
			return certificateRequestStatus{}, timeout()
		}
		if apierrors.IsNotFound(err) {
			return certificateRequestStatus{}, deleted(name) // It was there when it was made.
		}
		if err != nil {
			return certificateRequestStatus{}, c.apiError(ctx, "getting the CertificateRequest "+name, err)
		}
		if status, done, err := look(object); done || err != nil {
			return status, err
		}
		w, err := requests.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: object.GetResourceVersion()})
		if ctx.Err() != nil {
			return certificateRequestStatus{}, timeout()
		}
		if err != nil {
			return certificateRequestStatus{}, c.apiError(ctx, "watching the CertificateRequest "+name, err)
		}
		status, done, err := c.follow(ctx, w, look)
		w.Stop()
		if done || err != nil {
			return status, err
		}
		// The watch ended, as they do; a server that ends each at once is not hurried.
		select {
		case <-ctx.Done():
			return certificateRequestStatus{}, timeout()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func deleted(name string) error {
	return fmt.Errorf("%w: somebody deleted the CertificateRequest %s before it was signed", ErrUnavailable, name)
}

// follow looks at what a watch tells until the request is decided or the watch ends.
func (c *CertManager) follow(ctx context.Context, w watch.Interface,
	look func(*unstructured.Unstructured) (certificateRequestStatus, bool, error)) (certificateRequestStatus, bool, error) {
	for {
		select {
		case <-ctx.Done():
			return certificateRequestStatus{}, false, nil
		case event, ok := <-w.ResultChan():
			object, isObject := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type == watch.Error || !isObject {
				return certificateRequestStatus{}, false, nil
			}
			if event.Type == watch.Deleted {
				return certificateRequestStatus{}, false, deleted(object.GetName())
			}
			if status, done, err := look(object); done || err != nil {
				return status, done, err
			}
		}
	}
}

// remove deletes a request, also after ctx has ended.
func (c *CertManager) remove(ctx context.Context, requests dynamic.ResourceInterface, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := requests.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		c.options.Log.Warn("a CertificateRequest was left behind; delete it", "namespace", c.options.Namespace, "name", name, "error", err)
	}
}

// apiError tells what another try may help from what it can't.
func (c *CertManager) apiError(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ended(ctx))
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonNotFound:
		return fmt.Errorf("%s: %w (are cert-manager's CRDs installed, and is the namespace there?)", doing, err)
	case metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed:
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, err)
}
