package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"sigs.k8s.io/yaml"
)

var (
	testSource   = source{Version: "1.2.3", Commit: "0123456789abcdef", Date: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	testPlatform = platform{"linux", "amd64"}
)

// self returns a program with build information: this test.
func self(t *testing.T) []byte {
	t.Helper()
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Skipf("SKIPPED: this machine does not show a program its file: %v", err)
	}
	return binary
}

// made returns an image for one platform.
func made(t *testing.T, r *release) image {
	t.Helper()
	binary := self(t)
	img, err := assemble(coreProgram, testPlatform, binary, r.source)
	if err != nil {
		t.Fatal(err)
	}
	text, err := newSBOM("example.com/outrigger", testPlatform, binary, r.source)
	if err != nil {
		t.Fatal(err)
	}
	artifact, err := attach(img, text, r.source)
	if err != nil {
		t.Fatal(err)
	}
	i := image{program: coreProgram, sboms: []sbom{{testPlatform, text, artifact}}}
	i.index = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	if i.digest, err = i.index.Digest(); err != nil {
		t.Fatal(err)
	}
	return i
}

// TestImage reads an image like a container runtime.
func TestImage(t *testing.T) {
	img, err := assemble(coreProgram, testPlatform, []byte("#!program"), testSource)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/outrigger"}) || config.Architecture != "amd64" || config.OS != "linux" {
		t.Errorf("the image runs %v as %s on %s/%s", config.Config.Entrypoint, config.Config.User, config.OS, config.Architecture)
	}
	for label, want := range map[string]string{
		"version": "1.2.3", "revision": "0123456789abcdef", "created": "2026-11-01T12:00:00Z", "licenses": "Apache-2.0",
	} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	var files []string
	for r := tar.NewReader(mutate.Extract(img)); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, header.FileInfo().Mode().String()+" "+header.Name)
	}
	slices.Sort(files)
	if got, want := strings.Join(files, ", "), "-rw-r--r-- etc/group, -rw-r--r-- etc/passwd, -rwxr-xr-x outrigger, drwxr-xr-x etc, dtrwxrwxrwx tmp"; got != want {
		t.Errorf("the image contains %s, want %s", got, want)
	}
	again, err := assemble(coreProgram, testPlatform, []byte("#!program"), testSource)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := digest(t, img), digest(t, again); a != b {
		t.Errorf("two builds of the image have the digests %s and %s", a, b)
	}
}

func digest(t *testing.T, of interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	d, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLayoutAndArchive reads the folder like 'ctr images import', and packs it twice.
func TestLayoutAndArchive(t *testing.T) {
	r := &release{source: testSource, out: t.TempDir(), registry: "example.com/mesh"}
	i := made(t, r)
	if err := r.writeLayout([]image{i}); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(filepath.Join(r.out, "images"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.Manifests[0]; got.Digest != i.digest || got.Annotations["io.containerd.image.name"] != "example.com/mesh/outrigger:1.2.3" {
		t.Errorf("the first image of the layout is %s, named %v", got.Digest, got.Annotations)
	}
	if _, err := os.Stat(filepath.Join(r.out, "outrigger_1.2.3_linux_amd64.spdx.json")); err != nil {
		t.Error(err)
	}
	var archives [2]bytes.Buffer
	for n := range archives {
		if err := packDir(&archives[n], os.DirFS(filepath.Join(r.out, "images")), testSource); err != nil {
			t.Fatal(err)
		}
	}
	if archives[0].Len() == 0 || !bytes.Equal(archives[0].Bytes(), archives[1].Bytes()) {
		t.Error("two archives of the same folder differ")
	}
}

// TestPush pushes an image, and reads it and its referrers from the registry.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(t.Output(), "", 0))))
	t.Cleanup(server.Close)
	r := &release{source: testSource, registry: strings.TrimPrefix(server.URL, "http://") + "/mesh"}
	i := made(t, r)
	if err := r.pushImages(t.Context(), []image{i}); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(r.registry + "/outrigger:1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if got := digest(t, index); got != i.digest {
		t.Errorf("the registry has %s, want %s", got, i.digest)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	referrers, err := remote.Referrers(tag.Context().Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	list, err := referrers.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Manifests) != 1 || list.Manifests[0].ArtifactType != string(spdxType) {
		t.Errorf("the referrers of the image are %+v, want one SPDX document", list.Manifests)
	}
}

// TestSBOM reads a document like a scanner.
func TestSBOM(t *testing.T) {
	text, err := newSBOM("example.com/outrigger", testPlatform, self(t), testSource)
	if err != nil {
		t.Fatal(err)
	}
	var document spdx.Document
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	ids := make(map[common.ElementID]bool)
	var locators []string
	for _, p := range document.Packages {
		if ids[p.PackageSPDXIdentifier] {
			t.Errorf("two packages are %s", p.PackageSPDXIdentifier)
		}
		ids[p.PackageSPDXIdentifier] = true
		for _, reference := range p.PackageExternalReferences {
			locators = append(locators, reference.Locator)
		}
	}
	for _, want := range []string{"pkg:golang/stdlib@", "pkg:golang/github.com/google/go-containerregistry@v", "pkg:golang/sigs.k8s.io/yaml@v"} {
		if !slices.ContainsFunc(locators, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("no package is %s..., but %v", want, locators)
		}
	}
	for _, r := range document.Relationships {
		if !ids[r.RefB.ElementRefID] || r.RefA.ElementRefID != document.SPDXIdentifier && !ids[r.RefA.ElementRefID] {
			t.Errorf("%v refers to a missing package", r)
		}
	}
	if _, err := newSBOM("example.com/outrigger", testPlatform, []byte("#!program"), testSource); err == nil {
		t.Error("a program without build information has a bill of materials")
	}
}

// TestChart packs a chart and reads it like Helm.
func TestChart(t *testing.T) {
	r := &release{source: testSource, out: t.TempDir()}
	dir := fstest.MapFS{
		"Chart.yaml": {Data: []byte("name: outrigger\nappVersion: 1.2.3\n")}, "values.yaml": {}, "values.schema.json": {}, "chart.go": {},
		"crds/a.yaml": {Data: []byte("a")}, "templates/_b.tpl": {}, "testdata/c.txtar": {},
	}
	if err := r.chart(dir, map[string]string{"outrigger": "sha256:c0", "outrigger-init": "sha256:11"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.out, "outrigger-1.2.3.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
	for _, unwanted := range []string{"outrigger/chart.go", "outrigger/testdata/c.txtar"} {
		if _, there := files[unwanted]; there {
			t.Errorf("the chart contains %s", unwanted)
		}
	}
	if files["outrigger/crds/a.yaml"] != "a" || len(files) != 5 {
		t.Errorf("the chart contains %d files, want 5: %v", len(files), files)
	}
	var metadata struct{ Annotations map[string]string }
	if err := yaml.Unmarshal([]byte(files["outrigger/Chart.yaml"]), &metadata); err != nil {
		t.Fatal(err)
	}
	if metadata.Annotations["digest.outrigger"] != "sha256:c0" || metadata.Annotations["digest.outriggerInit"] != "sha256:11" {
		t.Errorf("the chart's annotations are %v", metadata.Annotations)
	}
}

// TestCompletion unpacks the archives' program for kubectl's completion, and calls it like
// kubectl.
func TestCompletion(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	bin := t.TempDir()
	program := filepath.Join(bin, "program")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range userPlatforms {
		files, err := programFiles(archived{platform: p, bin: "outrigger"}, program)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(files, func(f packed) bool { return f.name == "kubectl_complete-outrigger" })
		if (i >= 0) != (p.os != "windows") {
			t.Errorf("the archive for %s has %d files; the program for completion is number %d", p, len(files), i)
		}
		if i < 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(bin, files[i].name), files[i].text, os.FileMode(files[i].mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	got, err := exec.CommandContext(t.Context(), "kubectl_complete-outrigger", "proxy", "get", "").CombinedOutput()
	if want := "<outrigger><__complete><proxy><get><>"; err != nil || string(got) != want {
		t.Errorf("kubectl is called with %s, %v; want %s", got, err, want)
	}
}

// TestKrewAndChecksums checks krew's manifest: its checksum is the one in the list.
func TestKrewAndChecksums(t *testing.T) {
	r := &release{source: testSource, out: t.TempDir()}
	text, err := packZip([]packed{{"outrigger.exe", 0o755, []byte("program")}}, testSource)
	if err != nil {
		t.Fatal(err)
	}
	const archive = "outrigger_1.2.3_windows_amd64.zip"
	if err := r.write(archive, text); err != nil {
		t.Fatal(err)
	}
	if err := r.checksums(); err != nil {
		t.Fatal(err)
	}
	sums, err := fs.ReadFile(os.DirFS(r.out), "outrigger_1.2.3_checksums.txt")
	if err != nil {
		t.Fatal(err)
	}
	sum, _, _ := strings.Cut(string(sums), "  "+archive+"\n")
	if len(sum) != 64 {
		t.Fatalf("the checksums are %q", sums)
	}
	if err := r.krew([]archived{{platform{"windows", "amd64"}, archive, "outrigger.exe", sum}}); err != nil {
		t.Fatal(err)
	}
	manifest, err := fs.ReadFile(os.DirFS(r.out), "outrigger.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"version: v1.2.3\n", "bin: outrigger.exe\n", "arch: amd64\n", "os: windows\n", "sha256: " + sum + "\n",
		"/releases/download/v1.2.3/" + archive + "\n",
	} {
		if !strings.Contains(string(manifest), want) {
			t.Errorf("krew's manifest lacks %q:\n%s", want, manifest)
		}
	}
}
