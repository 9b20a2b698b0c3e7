package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// archive builds the images and one archive of them for nodes without a registry, for
// 'ctr images import', 'podman load' and 'skopeo copy oci-archive:'.
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
	if err := packDir(out, os.DirFS(filepath.Join(r.out, "images")), r.source); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	fmt.Println(file)
	return nil
}

// packDir writes a folder's files in the order of their names, with no metadata of the
// machine. It streams them, since images are large.
func packDir(out io.Writer, dir fs.FS, s source) error {
	w := tar.NewWriter(out)
	err := fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if entry.IsDir() {
			return w.WriteHeader(tarHeader(name+"/", 0o755, 0, s))
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
		if err := w.WriteHeader(tarHeader(name, 0o644, info.Size(), s)); err != nil {
			return err
		}
		_, err = io.Copy(w, in)
		return err
	})
	return errors.Join(err, w.Close())
}

// packed is a file of an archive, or a folder if its name ends in a slash.
type packed struct {
	name string
	mode int64
	text []byte
}

// packTar writes a tar archive of the files.
func packTar(out io.Writer, files []packed, s source) error {
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := w.WriteHeader(tarHeader(f.name, f.mode, int64(len(f.text)), s)); err != nil {
			return err
		}
		if _, err := w.Write(f.text); err != nil {
			return err
		}
	}
	return w.Close()
}

func tarHeader(name string, mode, size int64, s source) *tar.Header {
	header := &tar.Header{Name: name, Mode: mode, Size: size, ModTime: s.Date, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if strings.HasSuffix(name, "/") {
		header.Typeflag = tar.TypeDir
	}
	return header
}

func packTarGz(files []packed, s source) ([]byte, error) {
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	err := errors.Join(packTar(compressed, files, s), compressed.Close())
	return archive.Bytes(), err
}

func packZip(files []packed, s source) ([]byte, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: s.Date}
		header.SetMode(fs.FileMode(f.mode))
		file, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := file.Write(f.text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return archive.Bytes(), err
}
