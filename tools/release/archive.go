package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// archive makes the images and one archive of them for nodes without a registry, which
// 'ctr images import', 'podman load' and 'skopeo copy oci-archive:' read.
func (r *release) archive(ctx context.Context) error {
	if _, err := r.images(ctx); err != nil {
		return err
	}
	return r.writeArchive()
}

// writeArchive packs the folder of the images.
func (r *release) writeArchive() (err error) {
	file := filepath.Join(r.out, fmt.Sprintf("outrigger-images_%s.tar", r.source.Version))
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := writeTar(out, os.DirFS(filepath.Join(r.out, "images")), r.source); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	fmt.Println(file)
	return nil
}

// writeTar writes a folder's files in the order of their names, with nothing of the
// machine that they are on.
func writeTar(out io.Writer, dir fs.FS, s source) error {
	w := tar.NewWriter(out)
	err := fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		header := &tar.Header{Name: name, Mode: 0o644, ModTime: s.Date, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if entry.IsDir() {
			header.Name, header.Mode, header.Typeflag = name+"/", 0o755, tar.TypeDir
			return w.WriteHeader(header)
		}
		in, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			return err
		}
		header.Size = info.Size()
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = io.Copy(w, in)
		return err
	})
	return errors.Join(err, w.Close())
}
