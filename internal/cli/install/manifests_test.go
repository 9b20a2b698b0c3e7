package install_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/cli/install"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// run runs 'outrigger manifests' and returns its output.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := cli.NewRootCommand(install.Commands()...)
	var out, errs bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append([]string{"manifests"}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// installed is run for a valid command line, with decoded output.
func installed(t *testing.T, stdin string, args ...string) []*unstructured.Unstructured {
	t.Helper()
	stdout, _, err := run(t, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := apiserver.Decode([]byte(stdout))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func kinds(objects []*unstructured.Unstructured) []string {
	var all []string
	for _, o := range objects {
		all = append(all, o.GetKind())
	}
	return slices.Compact(all)
}

func TestManifestsOrder(t *testing.T) {
	// Objects that others need come first.
	rest := []string{
		"Namespace", "ServiceAccount", "Secret", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
		"Service", "Deployment", "MutatingWebhookConfiguration", "MeshConfig",
	}
	crd := []string{"CustomResourceDefinition"}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{nil, slices.Concat(crd, rest)},
		{[]string{"--include-crds=false"}, rest},
		{[]string{"--crds-only"}, crd},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			if diff := cmp.Diff(test.want, kinds(installed(t, "", test.args...))); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
		})
	}
}

// TestManifestsNamespace checks the namespace of every object, and the Namespace itself.
func TestManifestsNamespace(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "osm-system"},
		{[]string{"--namespace", "mesh"}, "mesh"},
		{[]string{"--namespace", "123"}, "123"},
		{[]string{"--namespace", "mesh", "--set", "osm.osmNamespace=elsewhere"}, "elsewhere"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			found := 0
			for _, o := range installed(t, "", test.args...) {
				namespace := o.GetNamespace()
				if o.GetKind() == "Namespace" {
					namespace = o.GetName()
					found++
				}
				if namespace != "" && namespace != test.want {
					t.Errorf("%s %s is for namespace %q, want %q", o.GetKind(), o.GetName(), namespace, test.want)
				}
			}
			if found != 1 {
				t.Errorf("there are %d Namespaces", found)
			}
		})
	}
}

// TestManifestsValues sets the name of the mesh in several ways, of which the last one wins.
func TestManifestsValues(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := file("first.yaml", "osm: {meshName: first, sidecarClass: pipy}")
	second := file("second.yaml", "osm: {meshName: second}")
	for _, test := range []struct {
		name  string
		stdin string
		args  []string
		want  string
	}{
		{"defaults", "", nil, "osm envoy"},
		{"file", "", []string{"-f", first}, "first pipy"},
		{"later file", "", []string{"-f", first, "-f", second}, "second pipy"},
		{"stdin", "osm: {meshName: stdin}", []string{"--values", first, "--values", "-"}, "stdin pipy"},
		{"set", "", []string{"--set", "osm.meshName=a,osm.sidecarClass=b", "--set", "osm.meshName=set", "-f", first}, "set b"},
		{"name", "", []string{"--name", "name", "--set", "osm.meshName=set", "-f", first}, "name pipy"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := "no MeshConfig"
			for _, o := range installed(t, test.stdin, test.args...) {
				if o.GetKind() == "MeshConfig" {
					class, _, _ := unstructured.NestedString(o.Object, "spec", "sidecar", "sidecarClass")
					got = o.GetLabels()["app.kubernetes.io/instance"] + " " + class
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestManifestsHighAvailability checks that the user's values override those of --ha.
func TestManifestsHighAvailability(t *testing.T) {
	replicas := map[string]int64{}
	for _, o := range installed(t, "osm: {osmController: {autoScale: {minReplicas: 3}}}", "-f", "-", "--ha") {
		if o.GetKind() == "HorizontalPodAutoscaler" {
			replicas[o.GetName()], _, _ = unstructured.NestedInt64(o.Object, "spec", "minReplicas")
		}
	}
	want := map[string]int64{"outrigger-controller": 3, "outrigger-injector": 2}
	if diff := cmp.Diff(want, replicas); diff != "" {
		t.Errorf("fewest replicas (-want +got):\n%s", diff)
	}
}

func TestManifestsRevision(t *testing.T) {
	var names []string
	for _, o := range installed(t, "revision: file", "-f", "-", "--revision", "canary", "--include-crds=false") {
		names = append(names, o.GetName())
	}
	want := []string{"osm-system", "outrigger-injector-canary", "outrigger-injector-canary-ca", "outrigger-injector-canary"}
	if diff := cmp.Diff(want, slices.Compact(names)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestManifestsNotesOnStderr(t *testing.T) {
	stdout, stderr, err := run(t, "", "--set", "osm.deployGrafana=true")
	if err != nil {
		t.Fatal(err)
	}
	const warning = "WARNING: osm.deployGrafana: no effect"
	if !strings.Contains(stderr, warning) || strings.Contains(stdout, warning) {
		t.Errorf("want %q on stderr alone, got there:\n%s", warning, stderr)
	}
}

func TestManifestsFails(t *testing.T) {
	for _, test := range []struct {
		args    []string
		want    string
		misused bool
	}{
		{[]string{"--set", "osm.meshName"}, `--set "osm.meshName"`, true},
		{[]string{"--namespace", "A B"}, `--namespace "A B"`, true},
		{[]string{"--crds-only", "--include-crds=false"}, "nothing to print", true},
		{[]string{"--no-such-flag"}, "--no-such-flag", true},
		{[]string{"chart"}, `"chart"`, true},
		{[]string{"-f", "no-such-file"}, "no-such-file", false},
		{[]string{"-f", "-"}, "values in -", false},
		{[]string{"--revision", "A"}, "/revision", false},
		{[]string{"--set", "injector.certificate.mode=secret"}, "injector.certificate.secretName", false},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			stdout, _, err := run(t, "no: [yaml", test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got error %v, want one with %q", err, test.want)
			}
			if got := errors.As(err, &usage.Error{}); got != test.misused {
				t.Errorf("wrong usage: got %t, want %t", got, test.misused)
			}
			if stdout != "" {
				t.Errorf("something was printed:\n%s", stdout)
			}
		})
	}
}

// TestManifestsRunsCommands checks that this program has the commands and flags with which the
// containers are started.
func TestManifestsRunsCommands(t *testing.T) {
	const volume = "{secret: {secretName: a}}"
	for _, values := range []string{
		"",
		"{revision: canary}",
		"{injector: {enabled: false}}",
		"{injector: {patchCABundle: false, mountConfig: true, certificate: {mode: secret, secretName: a}}}",
		"{injector: {certificate: {mode: files, volume: " + volume + "}}}",
	} {
		t.Run(values, func(t *testing.T) {
			commands := 0
			for _, o := range installed(t, values, "-f", "-") {
				if o.GetKind() != "Deployment" {
					continue
				}
				containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				if err != nil {
					t.Fatal(err)
				}
				args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
				if err != nil {
					t.Fatal(err)
				}
				command, flags, err := cli.NewRootCommand().Find(args)
				if err != nil || "outrigger-"+command.Name() != strings.TrimSuffix(o.GetName(), "-canary") {
					t.Fatalf("Deployment %s runs %q: %v", o.GetName(), args, err)
				}
				if err := command.ParseFlags(flags); err != nil {
					t.Errorf("Deployment %s runs %q: %v", o.GetName(), args, err)
				}
				commands++
			}
			if commands == 0 {
				t.Error("there is no Deployment")
			}
		})
	}
}

func TestManifestsAdmissionPolicy(t *testing.T) {
	objects := installed(t, "", "--admission-policy", "--set", "injector.mode=policy,osm.meshName=Team_A")
	var names []string
	for _, o := range objects {
		if !strings.HasPrefix(o.GetName(), "outrigger-injector.team-a.") || o.GetLabels()["openservicemesh.io/policy-of"] != "Team_A" {
			t.Errorf("%s has the name %s and the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
		names = append(names, strings.Split(o.GetName(), ".")[2])
	}
	// Each class that can have a policy has one, with its binding.
	if d := cmp.Diff([]string{"envoy", "guard", "haproxy", "null", "pipy"}, slices.Compact(slices.Sorted(slices.Values(names)))); d != "" {
		t.Errorf("the policies differ (-want +got):\n%s", d)
	}
	if got := kinds(objects)[len(kinds(objects))-2:]; got[0] != "ValidatingAdmissionPolicy" || got[1] != "ValidatingAdmissionPolicyBinding" {
		t.Errorf("the last kinds are %q", got)
	}
	again, _, err := run(t, "", "--admission-policy", "--set", "injector.mode=policy,osm.meshName=Team_A")
	first, _, _ := run(t, "", "--admission-policy", "--set", "injector.mode=policy,osm.meshName=Team_A")
	if err != nil || again != first {
		t.Error("two runs print different policies")
	}
	for _, test := range []struct{ set, want string }{
		{"injector.mode=webhook", "add --set injector.mode=policy"},
		{"injector.mode=both,injector.enabled=false", "add --set injector.mode=policy"},
		{"injector.mode=policy,meshConfig.create=false", "meshConfig.create: false"},
		{"injector.mode=policy,revision=canary", "injector.mode: policy is for the revision default"},
		{"injector.mode=both,injector.nativeSidecars=false", "leave injector.nativeSidecars: false out"},
		{"injector.mode=policy,injector.compat.istio=true", "injector.compat.istio needs the webhook"},
		{"injector.mode=sometimes", "injector/mode"},
	} {
		if _, _, err := run(t, "", "--admission-policy", "--set", test.set); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("--set %s: the error is %v", test.set, err)
		}
	}
	if _, _, err := run(t, "", "--admission-policy", "--crds-only"); !errors.As(err, &usage.Error{}) {
		t.Errorf("--admission-policy with --crds-only: %v", err)
	}
}
