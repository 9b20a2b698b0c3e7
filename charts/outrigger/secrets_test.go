package chart_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"
)

const gatewayValues = `{meshConfig: {spec: {certificate: {ingressGateway: {subjectAltNames: [gateway.shop], validityDuration: 24h, secret: {namespace: shop, name: gateway}}}}}}`

// values returns the values of all cases by their names.
func values(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"gateway": gatewayValues}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".txtar")] = string(txtar.Parse(text).Files[0].Data)
	}
	return all
}

// TestNoRoleMayCreateSecrets: a Secret of type kubernetes.io/service-account-token gets the
// token of the account that it names, so the permission to create Secrets includes those of
// every account in the namespace.
func TestNoRoleMayCreateSecrets(t *testing.T) {
	for name, values := range values(t) {
		t.Run(name, func(t *testing.T) {
			roles := 0
			for _, d := range documents(t, values) {
				var rules []rbacv1.PolicyRule
				switch role := d.object.(type) {
				case *rbacv1.Role:
					rules = role.Rules
				case *rbacv1.ClusterRole:
					rules = role.Rules
				default:
					continue
				}
				roles++
				for _, rule := range rules {
					if strings.Contains(d.name, "-certificates-") && slices.Equal(rule.Resources, []string{"secrets"}) && slices.Equal(rule.Verbs, []string{"list", "watch"}) {
						continue // TestCertificateNamespaces
					}
					if d.name == viewerRole && slices.Equal(rule.ResourceNames, []string{"outrigger-viewer"}) && slices.Equal(rule.Resources, []string{"serviceaccounts/token"}) {
						continue // TestViewer
					}
					if allows(rule, "", "secrets", "create", "patch", "deletecollection") || allows(rule, "", "serviceaccounts/token", "create") ||
						allows(rule, "", "pods", "create") || allows(rule, rbacv1.GroupName, "roles", "escalate") || allows(rule, rbacv1.GroupName, "rolebindings", "create") {
						t.Errorf("%s has the rule %v, with which its account can become another one", d.name, rule)
					}
					if allows(rule, "", "secrets", "get", "list", "watch", "update", "delete") && len(rule.ResourceNames) == 0 {
						t.Errorf("%s has the rule %v for all Secrets", d.name, rule)
					}
				}
			}
			if roles == 0 {
				t.Error("there is no role to look at")
			}
		})
	}
}

// TestCertificateNamespaces: the controller may read Secrets only in namespaces that the values name.
func TestCertificateNamespaces(t *testing.T) {
	for name, want := range map[string][]string{"gateways": nil, "gateway-certificates": {"Role edge", "Role shop"}, "default": nil} {
		var got []string
		for _, d := range documents(t, values(t)[name]) {
			switch role := d.object.(type) {
			case *rbacv1.Role:
				if strings.Contains(role.Name, "-certificates-") {
					got = append(got, "Role "+role.Namespace)
				}
			case *rbacv1.ClusterRole:
				if strings.Contains(role.Name, "-certificates-") {
					got = append(got, "ClusterRole")
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: the controller may read the Secrets by %q, want %q", name, got, want)
		}
	}
}

// viewerRole is for people.
const viewerRole = "Role/outrigger-viewer"

// TestViewer checks that the Role for becoming the viewer is not bound, and that the viewer
// may only read proxies.
func TestViewer(t *testing.T) {
	for name, values := range values(t) {
		t.Run(name, func(t *testing.T) {
			for _, d := range documents(t, values) {
				switch object := d.object.(type) {
				case *rbacv1.RoleBinding:
					if object.RoleRef.Name == "outrigger-viewer" || strings.Contains(d.text, "outrigger-viewer") {
						t.Errorf("%s is about the viewer", d.name)
					}
				case *rbacv1.ClusterRoleBinding:
					if strings.Contains(d.text, "name: outrigger-viewer,") && !strings.HasPrefix(object.RoleRef.Name, "outrigger-viewer") {
						t.Errorf("%s gives the viewer the rights of %s", d.name, object.RoleRef.Name)
					}
				case *rbacv1.ClusterRole:
					if !strings.HasPrefix(object.Name, "outrigger-viewer") {
						continue
					}
					want := []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/debug/proxy", "/debug/traffic", "/debug/mesh", "/debug/explain"}}}
					if !reflect.DeepEqual(object.Rules, want) {
						t.Errorf("%s has the rules %v, want %v", d.name, object.Rules, want)
					}
				}
			}
		})
	}
}

// allows reports whether a rule has one of the verbs for the resource.
func allows(rule rbacv1.PolicyRule, group, resource string, verbs ...string) bool {
	has := func(list []string, what string) bool {
		return slices.Contains(list, what) || slices.Contains(list, "*")
	}
	return has(rule.APIGroups, group) && has(rule.Resources, resource) &&
		slices.ContainsFunc(verbs, func(verb string) bool { return has(rule.Verbs, verb) })
}

// TestSecretsAreMadeEmpty checks that the Secrets which the control plane fills are created
// without data and type, so that applying them again changes nothing.
func TestSecretsAreMadeEmpty(t *testing.T) {
	for name, values := range values(t) {
		t.Run(name, func(t *testing.T) {
			all := documents(t, values)
			made := map[string]bool{}
			for _, d := range all {
				secret, ok := d.object.(*corev1.Secret)
				if !ok || secret.Name == "outrigger-vault-token" {
					continue
				}
				made[secret.Namespace+"/"+secret.Name] = true
				if len(secret.Data)+len(secret.StringData) > 0 || secret.Type != "" || secret.Annotations["helm.sh/resource-policy"] != "keep" {
					t.Errorf("%s is not as it must be:\n%s", d.name, d.text)
				}
			}
			// Secrets that may be updated must exist, unless they are the user's.
			for _, d := range all {
				role, ok := d.object.(*rbacv1.Role)
				if !ok {
					continue
				}
				for _, rule := range role.Rules {
					if !allows(rule, "", "secrets", "update") {
						continue
					}
					for _, name := range rule.ResourceNames {
						if !made[role.Namespace+"/"+name] && name != "outrigger-vault-token" && !strings.Contains(values, name) {
							t.Errorf("%s may update Secret %s, which nobody makes", d.name, name)
						}
					}
				}
			}
		})
	}
}

// TestHelmLeavesSecretsAlone: existing Secrets in the cluster are not part of the release.
// So neither a forced upgrade nor a rollback empties them, and those of Open Service Mesh
// cause no conflict.
func TestHelmLeavesSecretsAlone(t *testing.T) {
	cluster := clusterOf{}
	if diff := cmp.Diff([]string{"gateway", "outrigger-ca-bundle", "outrigger-ca-state", "outrigger-injector-ca"}, cluster.secrets(t)); diff != "" {
		t.Errorf("on an empty cluster (-want +got):\n%s", diff)
	}
	cluster = clusterOf{secretAt("osm-system", "outrigger-ca-bundle"), secretAt("osm-system", "outrigger-injector-ca"), secretAt("shop", "gateway"), secretAt("shop", "outrigger-ca-state")}
	if diff := cmp.Diff([]string{"outrigger-ca-state"}, cluster.secrets(t)); diff != "" {
		t.Errorf("on one where some are there (-want +got):\n%s", diff)
	}
}

func secretAt(namespace, name string) runtime.Object {
	return &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// clusterOf contains the objects of a cluster that Helm may look up.
type clusterOf []runtime.Object

// GetClientFor implements engine.ClientProvider.
func (c clusterOf) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, false, err
	}
	client := dynamicfake.NewSimpleDynamicClient(scheme, c...)
	return client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}), true, nil
}

// secrets returns the names of the Secrets that Helm creates, sorted.
func (c clusterOf) secrets(t *testing.T) []string {
	t.Helper()
	folder, err := loader.LoadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := yaml.Unmarshal([]byte(gatewayValues), &v); err != nil {
		t.Fatal(err)
	}
	input, err := util.ToRenderValues(folder, v, common.ReleaseOptions{Name: "mesh", Namespace: namespace, Revision: 2, IsUpgrade: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.RenderWithClientProvider(folder, input, c)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, text := range strings.Split(files["outrigger/templates/secrets.yaml"], "\n---\n") {
		var secret corev1.Secret
		if err := yaml.UnmarshalStrict([]byte(text), &secret); err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if secret.Name != "" {
			names = append(names, secret.Name)
		}
	}
	slices.Sort(names)
	return names
}
