package app_test

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	// What the guide's module imports, so that its modules are there once this test is
	// compiled, and the test runs again when one of them changes.
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	_ "github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	_ "github.com/outrigger-mesh/outrigger/test/command"
)

// TestAddADriver does what docs/add-a-driver.md says, in a module of its own
// outside of this repository and without a network.
func TestAddADriver(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "add-a-driver.md"))
	if err != nil {
		t.Fatal(err)
	}
	requirements, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	files := guideFiles(string(guide))
	for _, name := range []string{"main.go", "pod.yaml", "quiet/quiet.go", "quiet/quiet_test.go", "quiet/template.yaml"} {
		if files[name] == "" {
			t.Errorf("the guide has no file %s", name)
		}
	}
	files["go.sum"] = string(sums)
	files["go.mod"] = string(requirements)

	w := walk{t: t, dir: t.TempDir(), program: "."}
	if testing.Short() {
		w = inModule(w, root, files)
	}
	for name, content := range files {
		path := filepath.Join(w.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if testing.Short() {
		// A test runs in its package's folder, so the go command cannot start it here. Vet
		// reads the types of all packages of all modules.
		w.run("go", "test", "-c", "-vet=off", "-o", w.dir+"/", w.program+"/...")
		tests := w
		tests.root = filepath.Join(w.dir, "quiet")
		tests.run(filepath.Join(w.dir, "quiet.test"))
	} else {
		// Like "go mod tidy", this lists every module that is compiled. With fewer the go
		// command reads the go.mod files of versions that nothing here uses.
		w.run("go", "mod", "edit", "-module=example.com/quiet-mesh",
			"-require=github.com/outrigger-mesh/outrigger@v0.0.0", "-replace=github.com/outrigger-mesh/outrigger="+root)
		w.run("go", "vet", "./...")
		w.run("go", "test", "./...")
	}

	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(w.run("go", "run", w.program, "inject", "-f", filepath.Join(w.dir, "pod.yaml"))), pod); err != nil {
		t.Fatal(err)
	}
	containers := append(pod.Spec.InitContainers, pod.Spec.Containers...)
	at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Image == "registry.example.com/quiet:1.0" })
	if at < 0 || containers[at].Name != "outrigger-proxy" {
		t.Fatalf("the injected pod has no container of the vendor's: %v", containers)
	}
	env := containers[at].Env
	spec := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "OUTRIGGER_AGENT" })
	if spec < 0 || !strings.Contains(env[spec].Value, `"quiet","--config","/run/outrigger/quiet.yaml"`) {
		t.Errorf("the agent is not configured to run the vendor's proxy: %v", env)
	}
	if web := pod.Spec.Containers[0]; web.Name != "web" || web.Image != "registry.example.com/web:1" {
		t.Errorf("the pod's own container is %v", web)
	}
}

// guideFiles returns the fenced blocks that have a file name, by that.
func guideFiles(guide string) map[string]string {
	files := make(map[string]string)
	for _, m := range regexp.MustCompile("(?ms)^```\\w+ file=(\\S+)\n(.*?)^```$").FindAllStringSubmatch(guide, -1) {
		files[m[1]] = m[2]
	}
	return files
}

// walk runs commands in a folder.
type walk struct {
	t *testing.T
	// dir has the guide's files, and the commands run there or, if it is set, in root.
	dir, root string
	// program is the pattern of the vendor's program, relative to where the commands run.
	program string
	// flags are more flags of the go command.
	flags string
}

// inModule has the walk compile the guide's files as if they were in a folder of this module,
// and returns the walk for that. In a module of its own the packages of this one have another
// path, by which all of them are compiled again.
func inModule(w walk, root string, files map[string]string) walk {
	w.t.Helper()
	w.root, w.program = root, "./app/quiet-mesh"
	overlay := make(map[string]string)
	for name, content := range files {
		if strings.Contains(content, `"github.com/outrigger-mesh/outrigger/internal/`) {
			w.t.Errorf("%s of the guide imports an internal package", name)
		}
		if strings.HasPrefix(name, "go.") {
			delete(files, name)
			continue
		}
		files[name] = strings.ReplaceAll(content, "example.com/quiet-mesh", "github.com/outrigger-mesh/outrigger/app/quiet-mesh")
		overlay[filepath.Join(root, w.program, name)] = filepath.Join(w.dir, name)
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		w.t.Fatal(err)
	}
	files["overlay.json"] = string(list)
	w.flags = " -overlay=" + filepath.Join(w.dir, "overlay.json")
	return w
}

// run returns what the command writes to its standard output.
func (w walk) run(name string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = cmp.Or(w.root, w.dir)
	// What compiling this test has not brought into the module cache is an error, so
	// that the walk needs no network. A workspace around it must not count.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=readonly -buildvcs=false"+w.flags, "GOPROXY=off", "GOWORK=off", "KUBECONFIG=/dev/null")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.String())
	}
	return string(out)
}
