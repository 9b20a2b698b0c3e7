package servingcert_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
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

// csrIssuer returns an issuer whose CA is that of the file.
func csrIssuer(t *testing.T, client kubernetes.Interface, options servingcert.CSROptions) *servingcert.CSRIssuer {
	t.Helper()
	options.Client, options.Names, options.SignerName = client, names, signerName
	if options.CAFile == "" {
		options.CAFile = filepath.Join(t.TempDir(), "ca.crt")
		writeFile(t, options.CAFile, newTestCA(t, time.Hour).pem)
	}
	issuer, err := servingcert.NewCSRIssuer(options)
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

// answer calls a function for each request as soon as it is created.
func answer(client *fake.Clientset, with func(*certificatesv1.CertificateSigningRequest)) {
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		csr := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		with(csr)
		return false, nil, nil
	})
}

func condition(kind certificatesv1.RequestConditionType) func(*certificatesv1.CertificateSigningRequest) {
	return func(csr *certificatesv1.CertificateSigningRequest) {
		csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: "Policy", Message: "webhooks must be named after ships",
		})
	}
}

// TestCSRContent checks the content of requests.
func TestCSRContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ca := fake.NewClientset(), newTestCA(t, 365*day)
		file := filepath.Join(t.TempDir(), "ca.crt")
		writeFile(t, file, ca.pem)
		var asked *certificatesv1.CertificateSigningRequest
		answer(client, func(csr *certificatesv1.CertificateSigningRequest) {
			asked = csr.DeepCopy()
			block, _ := pem.Decode(csr.Spec.Request)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			csr.Status.Certificate = ca.sign(t, request.PublicKey, day, request.DNSNames, request.IPAddresses)
		})
		issuer := csrIssuer(t, client, servingcert.CSROptions{CAFile: file, Life: day})
		if err := verify(issue(t, subject{issuer: issuer})); err != nil {
			t.Error(err)
		}

		block, _ := pem.Decode(asked.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		last := len(dueNames) - 1
		if diff := cmp.Diff(dueNames[:last], request.DNSNames); diff != "" {
			t.Errorf("DNS names (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(dueNames[last], net.IP(request.IPAddresses[0]).String()); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		if request.Subject.CommonName != names.ServerName() {
			t.Errorf("common name %q", request.Subject.CommonName)
		}
		asked.Spec.Request = nil
		seconds := int32(24 * 3600)
		want := certificatesv1.CertificateSigningRequestSpec{
			SignerName:        signerName,
			ExpirationSeconds: &seconds,
			Usages:            []certificatesv1.KeyUsage{"digital signature", "key encipherment", "server auth"},
		}
		if diff := cmp.Diff(want, asked.Spec); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
		for _, action := range client.Actions() {
			if action.GetSubresource() == "approval" {
				t.Error("the request was approved without the option")
			}
		}
		noRequestLeft(t, client)
	})
}

func noRequestLeft(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	list, err := client.CertificatesV1().CertificateSigningRequests().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, csr := range list.Items {
		t.Errorf("request %s is left behind", csr.Name)
	}
}

// TestCSRWithoutCertificate checks the errors of requests that are not answered with a
// certificate.
func TestCSRWithoutCertificate(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	refuse := func(verb string) func(*fake.Clientset) {
		return func(client *fake.Clientset) {
			client.PrependReactor(verb, "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, forbidden
			})
		}
	}
	for what, test := range map[string]struct {
		prepare func(*fake.Clientset)
		options servingcert.CSROptions
		want    []string
	}{
		"denied": {
			prepare: func(client *fake.Clientset) { answer(client, condition(certificatesv1.CertificateDenied)) },
			want:    []string{"denied", "Policy", "webhooks must be named after ships", signerName},
		},
		"failed": {
			prepare: func(client *fake.Clientset) { answer(client, condition(certificatesv1.CertificateFailed)) },
			want:    []string{"failed", "Policy", "webhooks must be named after ships", signerName},
		},
		"never answered": {
			prepare: func(*fake.Clientset) {},
			want:    []string{"no certificate within 5m0s", "approved", signerName},
		},
		"own patience": {
			prepare: func(*fake.Clientset) {},
			options: servingcert.CSROptions{Timeout: time.Minute},
			want:    []string{"no certificate within 1m0s"},
		},
		"deleted by somebody": {
			prepare: func(client *fake.Clientset) {
				client.PrependReactor("get", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "certificatesigningrequests"}, "x")
				})
			},
			want: []string{"not found"},
		},
		"must not create":  {prepare: refuse("create"), want: []string{"creating", "forbidden"}},
		"must not get":     {prepare: refuse("get"), want: []string{"forbidden"}},
		"must not approve": {prepare: refuse("update"), options: servingcert.CSROptions{Approve: true}, want: []string{"approving", "forbidden"}},
		"certificate for another key": {
			prepare: func(client *fake.Clientset) {
				ca := newTestCA(t, time.Hour)
				answer(client, func(csr *certificatesv1.CertificateSigningRequest) {
					csr.Status.Certificate, _ = ca.issue(t, time.Hour)
				})
			},
			want: []string{signerName, "private key does not match"},
		},
		"certificate that is none": {
			prepare: func(client *fake.Clientset) {
				answer(client, func(csr *certificatesv1.CertificateSigningRequest) { csr.Status.Certificate = []byte("yes") })
			},
			want: []string{signerName},
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				test.prepare(client)
				_, err := csrIssuer(t, client, test.options).Issue(t.Context())
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range test.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error %q does not say %q", err, want)
					}
				}
				noRequestLeft(t, client)
			})
		})
	}
}

// TestCSRDuringFaults checks that a request survives errors of the API server while it
// waits.
func TestCSRDuringFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ca := fake.NewClientset(), newTestCA(t, 365*day)
		file := filepath.Join(t.TempDir(), "ca.crt")
		writeFile(t, file, ca.pem)
		answer(client, func(csr *certificatesv1.CertificateSigningRequest) {
			block, _ := pem.Decode(csr.Spec.Request)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			csr.Status.Certificate = ca.sign(t, request.PublicKey, day, request.DNSNames, request.IPAddresses)
		})
		faults := 5
		client.PrependReactor("get", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			faults--
			return faults >= 0, nil, apierrors.NewInternalError(os.ErrDeadlineExceeded)
		})
		if err := verify(issue(t, subject{issuer: csrIssuer(t, client, servingcert.CSROptions{CAFile: file})})); err != nil {
			t.Error(err)
		}
	})
}

// TestCSRWithoutCA checks that nothing is requested without the signer's CA.
func TestCSRWithoutCA(t *testing.T) {
	client := fake.NewClientset()
	issuer, err := servingcert.NewCSRIssuer(servingcert.CSROptions{Client: client, Names: names, SignerName: signerName})
	if err != nil {
		t.Fatal(err)
	}
	_, err = issuer.Issue(t.Context())
	if err == nil || !strings.Contains(err.Error(), "mesh/kube-root-ca.crt") {
		t.Errorf("the error %v does not name the ConfigMap", err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() == "create" {
			t.Error("a certificate was asked for that could not be used")
		}
	}
}

func TestCSRInvalidOptions(t *testing.T) {
	for what, options := range map[string]servingcert.CSROptions{
		"no names":  {SignerName: signerName},
		"no signer": {Names: names},
		"too short": {Names: names, SignerName: signerName, Life: time.Minute},
	} {
		if _, err := servingcert.NewCSRIssuer(options); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
