package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// userPlatforms are the platforms of the command-line program.
var userPlatforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// completion is the program by which kubectl completes the arguments of its plug-in. Its name
// and its place in PATH are kubectl's convention; krew cannot install it.
const completion = "kubectl_complete-outrigger"

// all builds a complete release, in which images are referenced by digest.
func (r *release) all(ctx context.Context) error {
	if r.source.Dirty {
		return errors.New("files differ from the commit, so the release would not be reproducible: commit them first")
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	r.pin = true
	images, err := r.images(ctx)
	if err != nil {
		return err
	}
	if err := r.writeArchive(); err != nil {
		return err
	}
	digests := make(map[string]string)
	for _, i := range images {
		digests[i.image] = i.digest.String()
	}
	archives, err := r.programs(ctx, digests)
	if err != nil {
		return err
	}
	if err := r.chart(os.DirFS(filepath.Join("charts", "outrigger")), digests); err != nil {
		return err
	}
	if err := r.krew(archives); err != nil {
		return err
	}
	if err := r.labs(ctx, digests); err != nil {
		return err
	}
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	if err := r.notes(changes); err != nil {
		return err
	}
	if err := r.provenance(images); err != nil {
		return err
	}
	return r.checksums()
}

// archived is the archive of the command-line program for one platform.
type archived struct {
	platform platform
	// name is the archive's file name, and bin the program's name in it.
	name, bin string
	sha256    string
}

// programs builds the archives of the command-line program.
func (r *release) programs(ctx context.Context, digests map[string]string) ([]archived, error) {
	set := pinned(digests)
	dir, err := os.MkdirTemp("", "outrigger-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var all []archived
	for _, p := range userPlatforms {
		a := archived{platform: p, bin: "outrigger", name: fmt.Sprintf("outrigger_%s_%s_%s.tar.gz", r.source.Version, p.os, p.arch)}
		pack := packTarGz
		if p.os == "windows" {
			a.bin, a.name, pack = "outrigger.exe", strings.TrimSuffix(a.name, ".tar.gz")+".zip", packZip
		}
		file := filepath.Join(dir, a.bin)
		if err := r.compile(ctx, "./cmd/outrigger", p, file, set); err != nil {
			return nil, err
		}
		files, err := programFiles(a, file)
		if err != nil {
			return nil, err
		}
		text, err := pack(files, r.source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		a.sha256 = fmt.Sprintf("%x", sha256.Sum256(text))
		if err := r.write(a.name, text); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// pinned returns the values of the variables by which a program refers to images by digest.
func pinned(digests map[string]string) map[string]string {
	return map[string]string{
		"internal/version.initDigest":      digests[initProgram.image],
		"charts/outrigger.releasedDigests": "outrigger=" + digests[coreProgram.image] + ",outriggerInit=" + digests[initProgram.image] + ",outriggerCNI=" + digests[cniProgram.image],
	}
}

// labPrograms are the programs of a mesh without a cluster, which runs on Linux.
var labPrograms = []string{"outrigger-lab", "outrigger-agent", "outrigger-cni"}

// labs builds the archives of the lab, which finds its other programs in its own folder.
func (r *release) labs(ctx context.Context, digests map[string]string) error {
	dir, err := os.MkdirTemp("", "outrigger-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, p := range userPlatforms {
		if p.os != "linux" {
			continue
		}
		var files []packed
		for _, name := range labPrograms {
			file := filepath.Join(dir, name)
			if err := r.compile(ctx, "./cmd/"+name, p, file, pinned(digests)); err != nil {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			files = append(files, packed{name, 0o755, text})
		}
		license, err := os.ReadFile("LICENSE")
		if err != nil {
			return err
		}
		archive, err := packTarGz(append(files, packed{"LICENSE", 0o644, license}), r.source)
		if err != nil {
			return err
		}
		if err := r.write(fmt.Sprintf("outrigger-lab_%s_%s_%s.tar.gz", r.source.Version, p.os, p.arch), archive); err != nil {
			return err
		}
	}
	return nil
}

// programFiles returns the files of an archive of the program, which is compiled in the file.
func programFiles(a archived, program string) ([]packed, error) {
	files := []packed{{name: a.bin, mode: 0o755}, {name: "LICENSE", mode: 0o644}, {name: "README.md", mode: 0o644}}
	from := []string{program, "LICENSE", "README.md"}
	if a.platform.os != "windows" {
		files = append(files, packed{name: completion, mode: 0o755})
		from = append(from, filepath.Join("tools", "release", completion))
	}
	for i := range files {
		var err error
		if files[i].text, err = os.ReadFile(from[i]); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// chart packs the chart as Helm does, with the images' digests as annotations.
func (r *release) chart(dir fs.FS, digests map[string]string) error {
	var files []packed
	for _, root := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "crds", "templates"} {
		err := fs.WalkDir(dir, root, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := fs.ReadFile(dir, name)
			files = append(files, packed{path.Join("outrigger", name), 0o644, text})
			return err
		})
		if err != nil {
			return err
		}
	}
	metadata := &files[0]
	metadata.text = bytes.ReplaceAll(metadata.text, []byte("ersion: "+r.chartVersion+"\n"), []byte("ersion: "+r.source.Version+"\n"))
	metadata.text = fmt.Appendf(metadata.text, "annotations:\n  digest.outrigger: %q\n  digest.outriggerInit: %q\n  digest.outriggerCNI: %q\n",
		digests[coreProgram.image], digests[initProgram.image], digests[cniProgram.image])
	archive, err := packTarGz(files, r.source)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("outrigger-%s.tgz", r.source.Version), archive)
}

// krew writes the manifest for 'kubectl krew install outrigger', which makes the program
// available as 'kubectl outrigger'.
func (r *release) krew(archives []archived) error {
	type labels map[string]string
	type selected struct {
		Selector struct {
			MatchLabels labels `json:"matchLabels"`
		} `json:"selector"`
		URI    string `json:"uri"`
		SHA256 string `json:"sha256"`
		Bin    string `json:"bin"`
	}
	var platforms []selected
	for _, a := range archives {
		s := selected{URI: fmt.Sprintf("https://%s/releases/download/v%s/%s", modulePath, r.source.Version, a.name), SHA256: a.sha256, Bin: a.bin}
		s.Selector.MatchLabels = labels{"os": a.platform.os, "arch": a.platform.arch}
		platforms = append(platforms, s)
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]any{"name": "outrigger"},
		"spec": map[string]any{
			"version":          "v" + r.source.Version,
			"homepage":         "https://" + modulePath,
			"shortDescription": "Operate a service mesh whose sidecar is a plug-in",
			"description": "Installs Outrigger, injects sidecars into manifests, finds mistakes in the objects\n" +
				"of a mesh, explains how a request is handled, and shows the state of proxies.\n",
			"platforms": platforms,
		},
	})
	if err != nil {
		return err
	}
	return r.write("outrigger.yaml", text)
}

// checksums writes the SHA-256 sums of all files in the format of sha256sum, and with a key
// their signature in Base64.
func (r *release) checksums() error {
	names, err := r.files()
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), name)
	}
	name := fmt.Sprintf("outrigger_%s_checksums.txt", r.source.Version)
	if err := r.write(name, sums.Bytes()); err != nil {
		return err
	}
	if r.signer == nil {
		fmt.Fprintln(os.Stderr, "NOT SIGNED: give the private key of releases with -key")
		return nil
	}
	signature, err := sign(r.signer, sums.Bytes())
	if err != nil {
		return fmt.Errorf("signing %s: %w", name, err)
	}
	return r.write(name+".sig", []byte(base64.StdEncoding.EncodeToString(signature)+"\n"))
}

func (r *release) write(name string, text []byte) error {
	file := filepath.Join(r.out, name)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	fmt.Println(file)
	return nil
}
