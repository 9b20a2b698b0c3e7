package main

import (
	"bytes"
	"context"
	"crypto"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// nonroot is the user and group of the images, the same as in the chart's pods.
const nonroot = "65532:65532"

// program is a main package that has an image.
type program struct {
	// image is the image's name, and file the program's path in it.
	image, file string
	pkg         string
	title       string
}

var (
	initProgram = program{"outrigger-init", "outrigger-agent", "./cmd/outrigger-agent", "Outrigger's agent in a pod: it redirects traffic, gets the identity and runs the proxy"}
	coreProgram = program{"outrigger", "outrigger", "./cmd/outrigger-core", "The control plane of Outrigger, a service mesh whose sidecar is a plug-in"}
	cniProgram  = program{"outrigger-cni", "outrigger-cni", "./cmd/outrigger-cni", "Outrigger's CNI plug-in, which redirects pods' traffic on the node, and its installer"}
	bookstore   = program{"bookstore", "bookstore", "./samples/bookstore", "The sample application of Outrigger"}
)

// release builds a release.
type release struct {
	// chartVersion is the version in the source; source.Version may be overridden.
	chartVersion string
	source       source
	out          string
	registry     string
	platforms    []platform
	push         bool
	local        bool
	// pin makes the programs refer to the init container's image by digest.
	pin bool
	// signer signs the checksums and the provenance; nil leaves them unsigned.
	signer crypto.Signer
}

// image is a built image for all platforms.
type image struct {
	program
	index v1.ImageIndex
	// digest is the digest of the index.
	digest v1.Hash
	// sboms has one document for each platform's image.
	sboms []sbom
}

// sbom is the bill of materials of an image.
type sbom struct {
	platform platform
	text     []byte
	// artifact carries the text and refers to the image.
	artifact v1.Image
}

// images builds all images, and pushes them with the option push. The init container's
// comes first, since the others may refer to it by digest.
func (r *release) images(ctx context.Context) ([]image, error) {
	set := make(map[string]string)
	var all []image
	for _, p := range []program{initProgram, coreProgram, cniProgram, bookstore} {
		made, err := r.image(ctx, p, set)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", p.image, err)
		}
		if p == initProgram && r.pin {
			set["internal/version.initDigest"] = made.digest.String()
		}
		all = append(all, made)
	}
	if err := r.writeLayout(all); err != nil {
		return nil, err
	}
	if r.push {
		if err := r.pushImages(ctx, all); err != nil {
			return nil, err
		}
	}
	for _, i := range all {
		fmt.Printf("%s@%s\n", r.tag(i.program), i.digest)
	}
	return all, nil
}

func (r *release) tag(p program) string { return r.registry + "/" + p.image + ":" + r.source.Version }

// image builds one program's image for all platforms.
func (r *release) image(ctx context.Context, p program, set map[string]string) (image, error) {
	made := image{program: p, index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	dir, err := os.MkdirTemp("", "outrigger-release-")
	if err != nil {
		return made, err
	}
	defer os.RemoveAll(dir)
	for _, on := range r.platforms {
		file := filepath.Join(dir, p.file+"-"+on.arch)
		if err := r.compile(ctx, p.pkg, on, file, set); err != nil {
			return made, err
		}
		binary, err := os.ReadFile(file)
		if err != nil {
			return made, err
		}
		img, err := assemble(p, on, binary, r.source)
		if err != nil {
			return made, err
		}
		made.index = mutate.AppendManifests(made.index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: on.os, Architecture: on.arch},
		}})
		text, err := newSBOM(r.registry+"/"+p.image, on, binary, r.source)
		if err != nil {
			return made, err
		}
		artifact, err := attach(img, text, r.source)
		if err != nil {
			return made, err
		}
		made.sboms = append(made.sboms, sbom{on, text, artifact})
	}
	made.index = mutate.Annotations(made.index, labels(p, r.source)).(v1.ImageIndex)
	made.digest, err = made.index.Digest()
	return made, err
}

// assemble builds the image of one platform: one layer with the program and a user.
func assemble(p program, on platform, binary []byte, s source) (v1.Image, error) {
	archive, err := layer(p.file, binary, s)
	if err != nil {
		return nil, err
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{Layer: content, History: v1.History{
		Created: v1.Time{Time: s.Date}, CreatedBy: "go build " + p.pkg, Comment: "compiled from commit " + s.Commit,
	}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = on.os, on.arch, v1.Time{Time: s.Date}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + p.file}, User: nonroot, WorkingDir: "/", Labels: labels(p, s),
		Env: []string{"PATH=/"},
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, labels(p, s)).(v1.Image), nil
}

// labels returns the labels that the OCI image specification defines.
func labels(p program, s source) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       p.image,
		"org.opencontainers.image.description": p.title,
		"org.opencontainers.image.version":     s.Version,
		"org.opencontainers.image.revision":    s.Commit,
		"org.opencontainers.image.created":     s.Date.Format(time.RFC3339),
		"org.opencontainers.image.source":      "https://" + modulePath,
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
}

// layer returns the archive of an image's files: the program, the name of its user, and a
// folder for temporary files.
func layer(file string, binary []byte, s source) ([]byte, error) {
	var archive bytes.Buffer
	err := packTar(&archive, []packed{
		{"etc/", 0o755, nil},
		{"etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n")},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{file, 0o755, binary},
		{"tmp/", 0o1777, nil},
	}, s)
	return archive.Bytes(), err
}

// attach builds the artifact that carries the bill of materials of an image.
func attach(img v1.Image, text []byte, s source) (v1.Image, error) {
	subject, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), spdxType)
	artifact, err = mutate.Append(artifact, mutate.Addendum{Layer: newStaticLayer(text), MediaType: spdxType, History: v1.History{Created: v1.Time{Time: s.Date}}})
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}

// writeLayout writes the images as a folder in the OCI image layout, with containerd's
// annotations for their names. It replaces an existing folder.
func (r *release) writeLayout(all []image) error {
	dir := filepath.Join(r.out, "images")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, i := range all {
		names := map[string]string{
			"io.containerd.image.name":          r.tag(i.program),
			"org.opencontainers.image.ref.name": r.source.Version,
		}
		if err := path.AppendIndex(i.index, layout.WithAnnotations(names)); err != nil {
			return err
		}
		for _, s := range i.sboms {
			if err := path.AppendImage(s.artifact); err != nil {
				return err
			}
			file := fmt.Sprintf("%s_%s_%s_%s.spdx.json", i.image, r.source.Version, s.platform.os, s.platform.arch)
			if err := os.WriteFile(filepath.Join(r.out, file), s.text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// pushImages pushes the images with their bills of materials.
func (r *release) pushImages(ctx context.Context, all []image) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, i := range all {
		tag, err := name.NewTag(r.tag(i.program))
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "pushing %s\n", tag)
		if err := remote.WriteIndex(tag, i.index, options...); err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
		for _, s := range i.sboms {
			digest, err := s.artifact.Digest()
			if err != nil {
				return err
			}
			if err := remote.Write(tag.Context().Digest(digest.String()), s.artifact, options...); err != nil {
				return fmt.Errorf("pushing the bill of materials of %s for %s: %w", tag, s.platform, err)
			}
		}
	}
	return nil
}
