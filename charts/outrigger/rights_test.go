package chart_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The requests below are "verb kind namespace/name". A list or a watch with a name is for
// that object, and "approve" for a request to that signer.

// testInjectorRights checks that the injector's service account has the permissions that it
// needs with some values, and no others.
func testInjectorRights(t *testing.T, s *server) {
	patchCABundle := requests("get list watch patch", "MutatingWebhookConfiguration /outrigger-injector")
	readConfig := slices.Concat(
		requests("get", "ConfigMap osm-system/outrigger-injector"), requests("list watch", "ConfigMap osm-system/"))
	ownCA := requests("get list watch update", "Secret osm-system/outrigger-injector-ca")
	readSecret := requests("get list watch", "Secret osm-system/mine")
	always := slices.Concat(
		requests("get", "Namespace /shop"), requests("list watch", "Namespace /"),
		requests("get list watch", "MeshConfig osm-system/osm-mesh-config"))
	never := slices.Concat(
		requests("get update delete", "Secret osm-system/other"), requests("list watch", "Secret osm-system/"),
		requests("create", "Secret osm-system/a"), requests("get create", "Secret shop/outrigger-injector-ca"), requests("delete", "Secret osm-system/outrigger-injector-ca"),
		requests("create patch", "ConfigMap osm-system/outrigger-injector"), requests("list", "ConfigMap shop/"),
		requests("get list patch", "MutatingWebhookConfiguration /other"),
		requests("list", "MutatingWebhookConfiguration /"),
		requests("create update delete", "MutatingWebhookConfiguration /outrigger-injector"),
		requests("patch", "MeshConfig osm-system/osm-mesh-config"), requests("list", "MeshConfig shop/"),
		requests("patch", "Namespace /shop"), requests("list create", "Pod shop/a"), requests("create", "Event shop/a"),
		requests("create get delete", "CertificateSigningRequest /a"), requests("approve", "CertificateSigningRequest example.com/webhooks"))

	for _, test := range []struct {
		name, values string
		can, cannot  [][]string
	}{
		{
			"own CA", "{}",
			[][]string{patchCABundle, readConfig, ownCA},
			[][]string{readSecret},
		}, {
			"cert-manager", "{injector: {patchCABundle: false, injectCAFrom: osm-system/mine, mountConfig: true, certificate: {mode: secret, secretName: mine}}}",
			[][]string{readSecret},
			[][]string{patchCABundle, readConfig, ownCA, requests("update", "Secret osm-system/mine")},
		}, {
			"files", "{injector: {mountConfig: true, certificate: {mode: files, volume: {secret: {secretName: mine}}}}}",
			[][]string{patchCABundle},
			[][]string{readConfig, ownCA, readSecret},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.apply(t, test.values)
			account := s.account(t, "outrigger-injector")
			account.can(t, slices.Concat(append(test.can, always)...))
			account.cannot(t, slices.Concat(append(test.cannot, never)...))
		})
	}
}

func testControllerRights(t *testing.T, s *server) {
	s.apply(t, "{}")
	account := s.account(t, "outrigger-controller")
	for _, kind := range append(source.Policies(), "Service", "EndpointSlice") {
		account.can(t, slices.Concat(requests("list watch", kind+" /"), requests("get", kind+" shop/a")))
		account.cannot(t, requests("create update patch delete", kind+" shop/a"))
		if kind == "Service" || kind == "EndpointSlice" || kind == "ReferenceGrant" {
			continue
		}
		account.can(t, requests("update", kind+"/status shop/a"))
		account.cannot(t, requests("patch", kind+"/status shop/a"))
	}
	account.cannot(t, requests("list", "ServiceAccount /"))
	account.can(t, slices.Concat(
		requests("list watch", "Namespace /"), requests("list watch", "Pod /"), requests("list watch", "ConfigMap osm-system/"),
		requests("get list watch", "MeshConfig osm-system/osm-mesh-config"),
		requests("update", "MeshConfig/status osm-system/osm-mesh-config"),
		requests("create patch", "Event shop/a"), requests("create get update", "Lease osm-system/outrigger-controller")))
	// Required for signing.
	account.can(t, slices.Concat(
		requests("create", "TokenReview /a"), requests("create", "SubjectAccessReview /a"),
		requests("get list watch update", "Secret osm-system/outrigger-ca-bundle"),
		requests("get list watch update", "Secret osm-system/outrigger-ca-state"),
		requests("list watch", "MeshRootCertificate osm-system/"), requests("update", "MeshRootCertificate/status osm-system/a"),
		requests("create", "ConfigMap shop/outrigger-ca"), requests("list watch", "ConfigMap /outrigger-ca"),
		requests("list watch", "ConfigMap /outrigger-token-keys"),
		requests("get list watch update delete", "ConfigMap shop/outrigger-ca")))
	account.cannot(t, slices.Concat(
		requests("create", "Secret osm-system/a"), requests("list", "Secret osm-system/"), requests("list", "Secret /"), requests("get", "Secret osm-system/outrigger-injector-ca"),
		requests("delete patch", "Secret osm-system/outrigger-ca-bundle"), requests("get create", "Secret shop/outrigger-ca-bundle"),
		requests("get", "Secret osm-system/mine"), requests("update", "MeshRootCertificate osm-system/a"),
		requests("list", "MeshRootCertificate shop/"), requests("create", "CertificateSigningRequest /a"),
		requests("update patch", "MeshConfig osm-system/osm-mesh-config"), requests("list", "MeshConfig shop/"),
		requests("patch", "MutatingWebhookConfiguration /outrigger-injector"), requests("list", "ConfigMap shop/"),
		requests("get update delete", "ConfigMap shop/other"), requests("list watch", "ConfigMap /other"), requests("list watch", "ConfigMap /"),
		requests("get update patch delete", "ConfigMap shop/outrigger-token-keys"), requests("get list watch", "Secret shop/outrigger-token-keys"),
		requests("list", "PodCertificateRequest /"), requests("create", "ClusterTrustBundle /a"),
		requests("patch update", "ConfigMap osm-system/outrigger-injector"), requests("update", "Lease osm-system/other"),
		requests("create patch delete", "Pod shop/a"), requests("update", "Pod/status shop/a"),
		requests("update", "Service/status shop/a"), requests("patch", "Namespace /shop")))

	viewer := s.account(t, "outrigger-viewer")
	viewer.cannot(t, slices.Concat(requests("list", "Pod /"), requests("list", "Pod osm-system/"), requests("get", "ConfigMap osm-system/outrigger-injector"),
		requests("list", "Secret osm-system/"), requests("create", "SubjectAccessReview /a")))
	s.apply(t, `{
  osm: {caBundleSecretName: mesh-ca, certificateProvider: {kind: vault, secretNames: [mine]}, vault: {host: vault, secret: {name: login}}},
  meshConfig: {spec: {certificate: {ingressGateway: {subjectAltNames: [gateway.shop], validityDuration: 24h, secret: {namespace: shop, name: gateway}}}}}}`)
	for _, name := range []string{"mesh-ca", "login", "mine"} {
		account.can(t, requests("get list watch update", "Secret osm-system/"+name))
	}
	account.can(t, requests("get update", "Secret shop/gateway"))
	s.apply(t, `{meshConfig: {spec: {certificate: {podCertificates: true}}}}`)
	const bundle = "ClusterTrustBundle /openservicemesh.io:mesh-osm:roots"
	account.can(t, slices.Concat(requests("list watch", "PodCertificateRequest /"), requests("update", "PodCertificateRequest/status shop/a"), requests("create get update", bundle)))
	account.cannot(t, slices.Concat(requests("create delete update patch", "PodCertificateRequest shop/a"), requests("get update delete", "ClusterTrustBundle /a"), requests("delete", bundle)))
	s.apply(t, `{
  osm: {caBundleSecretName: mesh-ca, certificateProvider: {kind: vault, secretNames: [mine]}, vault: {host: vault, secret: {name: login}}},
  meshConfig: {spec: {certificate: {ingressGateway: {subjectAltNames: [gateway.shop], validityDuration: 24h, secret: {namespace: shop, name: gateway}}}}}}`)
	gateways := []string{"Deployment shop/a", "Service shop/a", "ServiceAccount shop/a", "PodDisruptionBudget shop/a"}
	for _, object := range gateways {
		account.cannot(t, requests("create patch delete", object))
	}
	account.cannot(t, requests("create", "GatewayClass /a"))
	s.apply(t, "{gateways: {enabled: true}}")
	for _, object := range gateways {
		account.can(t, requests("get list watch create patch delete", object))
		account.cannot(t, requests("update", object))
	}
	account.can(t, requests("create get", "GatewayClass /a"))
	account.cannot(t, slices.Concat(requests("update patch delete", "GatewayClass /a"), requests("create patch delete", "Pod shop/a"), requests("create", "DaemonSet shop/a")))
	policies := []string{"MutatingAdmissionPolicy /a", "MutatingAdmissionPolicyBinding /a", "ValidatingAdmissionPolicy /a", "ValidatingAdmissionPolicyBinding /a"}
	for _, kind := range policies {
		account.cannot(t, requests("create list delete patch", kind))
	}
	s.apply(t, "{injector: {mode: policy}}")
	for _, kind := range policies {
		account.can(t, requests("create list delete patch", kind))
		account.cannot(t, requests("update", kind))
	}
	account.cannot(t, requests("create get list update patch delete", "MutatingWebhookConfiguration /outrigger-injector"))
	s.apply(t, `{
  osm: {caBundleSecretName: mesh-ca, certificateProvider: {kind: vault, secretNames: [mine]}, vault: {host: vault, secret: {name: login}}},
  meshConfig: {spec: {certificate: {ingressGateway: {subjectAltNames: [gateway.shop], validityDuration: 24h, secret: {namespace: shop, name: gateway}}}}}}`)
	account.cannot(t, slices.Concat(requests("delete create", "Secret shop/gateway"),
		requests("get", "Secret osm-system/outrigger-ca-bundle"), requests("get update delete", "Secret shop/other"), requests("list", "Secret shop/")))
}

// requests joins verbs with an object.
func requests(verbs, object string) []string {
	var all []string
	for verb := range strings.FieldsSeq(verbs) {
		all = append(all, verb+" "+object)
	}
	return all
}

// account is a service account of the control plane.
type account struct {
	server  *server
	objects dynamic.Interface
	client  kubernetes.Interface
}

func (s *server) account(t *testing.T, name string) *account {
	t.Helper()
	config := s.as(name)
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &account{s, objects, client}
}

func (a *account) can(t *testing.T, requests []string) {
	t.Helper()
	a.expect(t, requests, false, "is forbidden")
}

func (a *account) cannot(t *testing.T, requests []string) {
	t.Helper()
	a.expect(t, requests, true, "is not forbidden")
}

// expect waits until the requests are forbidden or allowed, since the API server notices
// changed permissions with a delay. Other errors mean allowed: the API server checks
// permissions first.
func (a *account) expect(t *testing.T, requests []string, forbidden bool, otherwise string) {
	t.Helper()
	for _, request := range requests {
		deadline := time.Now().Add(10 * time.Second)
		for apierrors.IsForbidden(a.do(t, request)) != forbidden {
			if time.Now().After(deadline) {
				t.Errorf("%s %s", request, otherwise)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// kinds are the kinds that the control plane uses.
var kinds = func() map[string]schema.GroupVersionResource {
	all := map[string]schema.GroupVersionResource{
		"CertificateSigningRequest":        {Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
		"ClusterTrustBundle":               {Group: "certificates.k8s.io", Version: "v1beta1", Resource: "clustertrustbundles"},
		"ConfigMap":                        {Version: "v1", Resource: "configmaps"},
		"DaemonSet":                        {Group: "apps", Version: "v1", Resource: "daemonsets"},
		"Deployment":                       {Group: "apps", Version: "v1", Resource: "deployments"},
		"PodDisruptionBudget":              {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		"Event":                            {Version: "v1", Resource: "events"},
		"Lease":                            {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		"MutatingWebhookConfiguration":     {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
		"MutatingAdmissionPolicy":          {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"},
		"MutatingAdmissionPolicyBinding":   {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicybindings"},
		"ValidatingAdmissionPolicy":        {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
		"ValidatingAdmissionPolicyBinding": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
		"PodCertificateRequest":            {Group: "certificates.k8s.io", Version: "v1beta1", Resource: "podcertificaterequests"},
		"Secret":                           {Version: "v1", Resource: "secrets"},
		"ServiceAccount":                   {Version: "v1", Resource: "serviceaccounts"},
		"SubjectAccessReview":              {Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"},
		"TokenReview":                      {Group: "authentication.k8s.io", Version: "v1", Resource: "tokenreviews"},
	}
	for _, kind := range source.Kinds() {
		all[fullKind(kind)] = kind.Resource().WithVersion(kind.Version)
	}
	return all
}()

// do makes a request, as a dry run if it would change something.
func (a *account) do(t *testing.T, request string) error {
	t.Helper()
	verb, rest, _ := strings.Cut(request, " ")
	kind, path, _ := strings.Cut(rest, " ")
	ns, name, _ := strings.Cut(path, "/")
	if verb == "approve" {
		return a.approve(t, path)
	}
	var subresources []string
	kind, subresource, found := strings.Cut(kind, "/")
	if found {
		subresources = []string{subresource}
	}
	gvr, ok := kinds[kind]
	if !ok {
		t.Fatalf("%s: there is no such kind", request)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvr.GroupVersion().WithKind(kind))
	object.SetName(name)
	list := metav1.ListOptions{}
	if name != "" {
		list.FieldSelector = "metadata.name=" + name
	}
	ctx, dryRun := t.Context(), []string{metav1.DryRunAll}
	client := a.objects.Resource(gvr).Namespace(ns)
	var err error
	switch verb {
	case "get":
		_, err = client.Get(ctx, name, metav1.GetOptions{}, subresources...)
	case "list":
		_, err = client.List(ctx, list)
	case "watch":
		err = watch(ctx, client, list)
	case "create":
		_, err = client.Create(ctx, object, metav1.CreateOptions{DryRun: dryRun}, subresources...)
	case "update":
		_, err = client.Update(ctx, object, metav1.UpdateOptions{DryRun: dryRun}, subresources...)
	case "patch":
		_, err = client.Patch(ctx, name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: dryRun}, subresources...)
	case "delete":
		err = client.Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun}, subresources...)
	default:
		t.Fatalf("%s: there is no such verb", request)
	}
	return err
}

func watch(ctx context.Context, client dynamic.ResourceInterface, options metav1.ListOptions) error {
	events, err := client.Watch(ctx, options)
	if err == nil {
		events.Stop()
	}
	return err
}

// approve approves another client's request to the signer.
func (a *account) approve(t *testing.T, signer string) error {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := a.server.admin.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"},
	}
	_, err = a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{})
	return err
}

func fullKind(kind source.Kind) string {
	return mesh.ObjectRef{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}.FullKind()
}
