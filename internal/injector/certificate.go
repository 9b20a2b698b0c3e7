package injector

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// The values of Certificate.Source.
const (
	OwnCA      = "own-ca"
	FromSecret = "secret"
	FromFiles  = "files"
)

// Certificate says where the webhook's certificate comes from. Fields that do not belong to
// the Source are ignored.
type Certificate struct {
	Source string
	// Service is the webhook's Service. ClusterDomain ends its DNS names; empty means
	// "cluster.local". ExtraNames are further names for the certificate.
	Service, ClusterDomain string
	ExtraNames             []string
	// CASecret belongs to OwnCA, CertificateSecret to FromSecret, and CertDir to FromFiles.
	CASecret, CertificateSecret, CertDir string
}

func (o *Options) newManager(client kubernetes.Interface, registry prometheus.Registerer) (*servingcert.Manager, error) {
	names := servingcert.Names{Service: o.Service, Namespace: o.Mesh.Namespace, ClusterDomain: o.ClusterDomain, Extra: o.ExtraNames}
	var (
		issuer servingcert.Issuer
		err    error
	)
	switch o.Source {
	case OwnCA:
		issuer, err = servingcert.NewOwnCA(servingcert.OwnCAOptions{Client: client, Namespace: o.Mesh.Namespace, Name: o.CASecret, Names: names})
	case FromSecret:
		issuer = servingcert.NewSecretIssuer(client, o.Mesh.Namespace, o.CertificateSecret)
	case FromFiles:
		issuer = servingcert.NewFileIssuer(servingcert.Files{
			Certificate: filepath.Join(o.CertDir, "tls.crt"), Key: filepath.Join(o.CertDir, "tls.key"), CA: filepath.Join(o.CertDir, "ca.crt"),
		})
	default:
		err = fmt.Errorf("--certificate %q: sources are own-ca, secret and files", o.Source)
	}
	if err != nil {
		return nil, OptionError{err}
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, OptionError{fmt.Errorf("--listen %q: %w", o.Listen, err)}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return servingcert.New(issuer, servingcert.Options{
		ServerName:           names.ServerName(),
		WebhookConfiguration: o.WebhookConfig,
		Client:               client,
		SelfCheck: servingcert.SelfCheck{
			Address: net.JoinHostPort(host, port), Review: o.sampleReview(), Accept: acceptReview,
		},
		Registerer: registry,
		Logger:     o.Log,
	})
}

// sampleReview returns the AdmissionReview of the self-check. Its pod is in a namespace that
// is never injected, so the answer shows only that the webhook decides.
func (o *Options) sampleReview() []byte {
	review, err := json.Marshal(map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": map[string]any{
			"uid": inject.SelfCheckUID, "operation": "CREATE", "dryRun": true, "namespace": o.Mesh.Namespace,
			"kind":   map[string]any{"version": "v1", "kind": "Pod"},
			"object": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "self-check"}},
		},
	})
	if err != nil {
		panic(err) // Only strings and booleans are marshalled.
	}
	return review
}

func acceptReview(answer []byte) error {
	var review struct {
		Response *struct {
			Allowed bool
			Status  struct{ Message string }
		}
	}
	if err := json.Unmarshal(answer, &review); err != nil {
		return fmt.Errorf("the webhook's answer to its own request is not an admission review: %w", err)
	}
	if review.Response == nil || !review.Response.Allowed {
		message := "no response"
		if review.Response != nil {
			message = review.Response.Status.Message
		}
		return errors.New("the webhook denies its own review: " + message)
	}
	return nil
}
