package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// load loads images into the cluster: archives, or folders in the OCI image layout.
func (c *cluster) load(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return errors.New("load: give at least one archive or folder")
	}
	for _, from := range paths {
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		if err := c.importImages(ctx, func(w io.Writer) error {
			if !info.IsDir() {
				file, err := os.Open(from)
				if err != nil {
					return err
				}
				defer file.Close()
				_, err = io.Copy(w, file)
				return err
			}
			archive := tar.NewWriter(w)
			return errors.Join(archive.AddFS(os.DirFS(from)), archive.Close())
		}); err != nil {
			return fmt.Errorf("loading %s: %w", from, err)
		}
	}
	return nil
}

// importImages imports an archive, which write writes, into containerd.
func (c *cluster) importImages(ctx context.Context, write func(io.Writer) error) error {
	cmd := exec.CommandContext(ctx, c.path("bin", "ctr"), "--address", c.path("containerd.sock"), "--namespace", "k8s.io",
		"images", "import", "--all-platforms=false", "-")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	written := errors.Join(write(in), in.Close())
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("ctr images import: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return written
}

// loadOwn loads the images that every cluster needs.
func (c *cluster) loadOwn(ctx context.Context) error {
	for name, program := range map[string]string{pauseImage: "pause", dnsImage: "coredns"} {
		if err := c.addImage(ctx, name, []string{"/" + program + "=" + c.path("bin", program)}); err != nil {
			return err
		}
	}
	return nil
}

// addImage builds an image of programs of this machine and loads it. The first program is
// the entrypoint. The image includes the dynamic linker and the libraries that the programs
// need, at their paths.
func (c *cluster) addImage(ctx context.Context, of string, programs []string) error {
	files := make(map[string]string)
	var entrypoint string
	for _, text := range programs {
		inside, file, found := strings.Cut(text, "=")
		if !found || !path.IsAbs(inside) {
			return fmt.Errorf("image %s: %q: give PATH=FILE with an absolute PATH", of, text)
		}
		if entrypoint == "" {
			entrypoint = inside
		}
		files[inside] = file
		libraries, err := linkedWith(file)
		if err != nil {
			return fmt.Errorf("image %s: %w", of, err)
		}
		for _, library := range libraries {
			files[library] = library
		}
	}
	layer, err := packFiles(files)
	if err != nil {
		return fmt.Errorf("image %s: %w", of, err)
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: []string{entrypoint}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return err
	}
	tag, err := name.NewTag(of)
	if err != nil {
		return err
	}
	return c.importImages(ctx, func(w io.Writer) error { return tarball.Write(tag, img, w) })
}

// linkedWith returns the paths of the libraries of a program, none for a static program.
func linkedWith(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) || bytes.Contains(out, []byte("statically linked")) {
			return nil, nil
		}
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	if missing := regexp.MustCompile(`(\S+) => not found`).FindSubmatch(out); missing != nil {
		return nil, fmt.Errorf("%s needs %s, which is not installed", program, missing[1])
	}
	var libraries []string
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		libraries = append(libraries, string(m[1]))
	}
	return libraries, nil
}

// packFiles returns a layer with the files and the folders above them.
func packFiles(files map[string]string) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	made := map[string]bool{"/": true}
	var folder func(string) error
	folder = func(dir string) error {
		if made[dir] {
			return nil
		}
		if err := folder(path.Dir(dir)); err != nil {
			return err
		}
		made[dir] = true
		return w.WriteHeader(&tar.Header{Name: dir[1:] + "/", Mode: 0o755, Typeflag: tar.TypeDir})
	}
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}); err != nil {
		return nil, err
	}
	made["/tmp"] = true
	for _, inside := range slices.Sorted(maps.Keys(files)) {
		real, err := filepath.EvalSymlinks(files[inside])
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(real)
		if err != nil {
			return nil, err
		}
		if err := folder(path.Dir(inside)); err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Name: inside[1:], Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return archive.Bytes(), err
}
