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

// certManagerGroup is the API group of cert-manager and its own issuers.
const certManagerGroup = "cert-manager.io"

var certificateRequests = schema.GroupVersionResource{Group: certManagerGroup, Version: "v1", Resource: "certificaterequests"}

// CertManagerOptions configure a CertManager.
type CertManagerOptions struct {
	// Client creates, gets, watches and deletes CertificateRequests.
	Client dynamic.Interface
	// Namespace is the namespace of the requests, and of the issuer if its kind is Issuer.
	Namespace string
	// IssuerName is the issuer's name. IssuerKind is Issuer, ClusterIssuer or a kind in
	// IssuerGroup; empty means Issuer. An empty IssuerGroup means cert-manager.io.
	IssuerName, IssuerKind, IssuerGroup string
	// Log logs requests that could not be deleted; nil means slog.Default().
	Log *slog.Logger
}

// CertManager issues certificates through cert-manager. It creates a CertificateRequest for
// each and deletes it afterwards. The CSR is signed unchanged, so it must ask for exactly
// the request's names. The cluster must approve the requests; by default cert-manager does
// for its own kinds of issuers. The root is the one in a request's status.ca.
type CertManager struct {
	*remote
	options CertManagerOptions
}

var _ Issuer = (*CertManager)(nil)

// NewCertManager returns the issuer. It sends no requests.
func NewCertManager(o CertManagerOptions) (*CertManager, error) {
	o.IssuerKind = cmp.Or(o.IssuerKind, "Issuer")
	o.IssuerGroup = cmp.Or(o.IssuerGroup, certManagerGroup)
	if o.Client == nil || o.Namespace == "" || o.IssuerName == "" {
		return nil, fmt.Errorf("cert-manager: a client, a namespace and an issuer's name are needed, not %q and %q", o.Namespace, o.IssuerName)
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	name := fmt.Sprintf("cert-manager %s %s", o.IssuerKind, o.IssuerName)
	if o.IssuerGroup != certManagerGroup {
		name = fmt.Sprintf("cert-manager %s.%s %s", o.IssuerKind, o.IssuerGroup, o.IssuerName)
	}
	c := &CertManager{options: o}
	c.remote = newRemote(name, c.sign)
	return c, nil
}

// certificateRequest has the used fields of cert-manager's type.
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

// sign creates a CertificateRequest and waits until it is signed or denied, or ctx ends.
func (c *CertManager) sign(ctx context.Context, req Request) (answer, error) {
	object, err := c.object(req)
	if err != nil {
		return answer{}, err
	}
	requests := c.options.Client.Resource(certificateRequests).Namespace(c.options.Namespace)
	made, err := requests.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return answer{}, c.apiError(ctx, "creating a CertificateRequest in namespace "+c.options.Namespace, err)
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
		return nil, fmt.Errorf("encoding a CertificateRequest: %w", err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetAPIVersion(certificateRequests.GroupVersion().String())
	object.SetKind("CertificateRequest")
	object.SetGenerateName("outrigger-")
	object.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "outrigger"})
	return object, nil
}

// wait waits until a request is signed and returns its status.
func (c *CertManager) wait(ctx context.Context, requests dynamic.ResourceInterface, name string) (certificateRequestStatus, error) {
	last := "it has no conditions; is cert-manager running, and does it approve requests for this issuer?"
	// look reports whether the request is signed. The error is set if it was denied.
	look := func(object *unstructured.Unstructured) (certificateRequestStatus, bool, error) {
		var request certificateRequest
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &request); err != nil {
			return request.Status, false, fmt.Errorf("reading the CertificateRequest %s: %w", name, err)
		}
		for _, condition := range request.Status.Conditions {
			text := fmt.Sprintf("%s (%s): %s", condition.Type, condition.Reason, condition.Message)
			switch {
			case condition.Status == "True" && (condition.Type == "Denied" || condition.Type == "InvalidRequest"),
				condition.Type == "Ready" && condition.Status == "False" && (condition.Reason == "Failed" || condition.Reason == "Denied"):
				return request.Status, false, fmt.Errorf("it denied the CertificateRequest: %s", text)
			case condition.Type == "Ready" && condition.Status == "True":
				return request.Status, len(request.Status.Certificate) > 0, nil
			case condition.Type == "Ready":
				last = text
			}
		}
		return request.Status, false, nil
	}
	timeout := func() error {
		err := ended(ctx)
		if !errors.Is(err, ErrUnavailable) {
			return err
		}
		return fmt.Errorf("%w; the last state of the CertificateRequest: %s", err, last)
	}
	for {
		status, done, err := c.follow(ctx, requests, name, look)
		if done || err != nil && ctx.Err() == nil {
			return status, err
		}
		// Watches end from time to time. Pause in case the server ends each one at once.
		select {
		case <-ctx.Done():
			return certificateRequestStatus{}, timeout()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func deleted(name string) error {
	return fmt.Errorf("%w: the CertificateRequest %s was deleted before it was signed", ErrUnavailable, name)
}

// follow passes a request and its changes to look until the request is decided or the watch
// ends.
func (c *CertManager) follow(ctx context.Context, requests dynamic.ResourceInterface, name string,
	look func(*unstructured.Unstructured) (certificateRequestStatus, bool, error)) (status certificateRequestStatus, done bool, err error) {
	object, err := requests.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return status, false, deleted(name) // It existed after Create.
	}
	if err != nil {
		return status, false, c.apiError(ctx, "getting the CertificateRequest "+name, err)
	}
	if status, done, err := look(object); done || err != nil {
		return status, done, err
	}
	w, err := requests.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: object.GetResourceVersion()})
	if err != nil {
		return status, false, c.apiError(ctx, "watching the CertificateRequest "+name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return status, false, nil
		case event, ok := <-w.ResultChan():
			object, isObject := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type == watch.Error || !isObject {
				return status, false, nil
			}
			if event.Type == watch.Deleted {
				return status, false, deleted(name)
			}
			if status, done, err := look(object); done || err != nil {
				return status, done, err
			}
		}
	}
}

// remove deletes a request, even if ctx has ended.
func (c *CertManager) remove(ctx context.Context, requests dynamic.ResourceInterface, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := requests.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		c.options.Log.Warn("cannot delete a CertificateRequest; delete it manually", "namespace", c.options.Namespace, "name", name, "error", err)
	}
}

// apiError adds context to an error, and ErrUnavailable if a retry may help.
func (c *CertManager) apiError(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, ended(ctx))
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonNotFound:
		return fmt.Errorf("%s: %w (are cert-manager's CRDs installed, and does the namespace exist?)", doing, err)
	case metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed:
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, err)
}
