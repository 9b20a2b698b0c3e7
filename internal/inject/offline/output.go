package offline

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// Join returns the outputs as one stream of documents, which kubectl can read. A
// single output is returned unchanged.
func Join(outputs []Output) []byte {
	if len(outputs) == 1 {
		return outputs[0].Data
	}
	allJSON := !slices.ContainsFunc(outputs, func(o Output) bool { return len(o.values) == 0 && len(o.Data) > 0 })
	var b bytes.Buffer
	for i := range outputs {
		data := bytes.TrimPrefix(outputs[i].Data, manifest.ByteOrderMark)
		if !allJSON && len(outputs[i].values) > 0 {
			data = bytes.Join(outputs[i].values, []byte("\n---\n"))
		}
		if len(data) == 0 {
			continue
		}
		if n := b.Len(); n > 0 && b.Bytes()[n-1] != '\n' {
			b.WriteByte('\n')
		}
		// The first document needs a marker too if it is JSON: otherwise kubectl reads
		// the whole stream as JSON.
		if !allJSON && !manifest.IsMarker(data[:manifest.LineEnd(data, 0)], "---") && (b.Len() > 0 || data[0] == '{') {
			b.WriteString("---\n")
		}
		b.Write(data)
	}
	return b.Bytes()
}

// Destinations returns the path of each output below a folder: the source's path
// relative to the folder that was read, or its base name. Two outputs with the same
// path are an error, and so is one from standard input.
func Destinations(folder string, outputs []Output) ([]string, error) {
	paths := make([]string, len(outputs))
	from := make(map[string]string)
	for i := range outputs {
		source := outputs[i].Source
		if source.Name == stdinName {
			return nil, errors.New("standard input has no file name, so it cannot be written to folder " + folder)
		}
		paths[i] = filepath.Join(folder, cmp.Or(source.Relative, filepath.Base(source.Name)))
		if other, taken := from[paths[i]]; taken {
			return nil, fmt.Errorf("%s and %s would both be written to %s", other, source.Name, paths[i])
		}
		from[paths[i]] = source.Name
	}
	return paths, nil
}

// WriteFiles writes all files or, where possible, none: it writes each to a temporary
// file beside its path and renames them when all are complete. A path may be that of a
// source. Missing folders are created, and existing files keep their mode. Links are
// followed; pipes and devices are written to directly.
func WriteFiles(paths []string, data [][]byte) (err error) {
	type pending struct{ temporary, path string }
	var written []pending
	defer func() {
		for _, p := range written {
			err = errors.Join(err, os.Remove(p.temporary))
		}
	}()
	for i, path := range paths {
		path, info, err := target(path)
		if err != nil {
			return err
		}
		if info != nil && !info.Mode().IsRegular() {
			if err := writeThrough(path, data[i]); err != nil {
				return err
			}
			continue
		}
		temporary, err := writeTemporary(path, info, data[i])
		if temporary != "" {
			written = append(written, pending{temporary, path})
		}
		if err != nil {
			return err
		}
	}
	for len(written) > 0 {
		if err := os.Rename(written[0].temporary, written[0].path); err != nil {
			return err
		}
		written = written[1:]
	}
	return nil
}

// target follows links and creates the folder. The info is nil if the file does not
// exist yet.
func target(path string) (string, fs.FileInfo, error) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil, os.MkdirAll(filepath.Dir(path), 0o777)
	}
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder", path)
	}
	return path, info, err
}

// writeThrough writes to a pipe or a device.
func writeThrough(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// writeTemporary writes a new file beside the path and returns its name, empty if it
// was not created.
func writeTemporary(path string, info fs.FileInfo, data []byte) (string, error) {
	f, err := createBeside(path)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil && info != nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

// createBeside creates a temporary file. Unlike os.CreateTemp it leaves the file's mode
// to the user's umask, as for a file created by the shell.
func createBeside(path string) (*os.File, error) {
	folder, base := filepath.Split(path)
	for n := 0; ; n++ {
		f, err := os.OpenFile(filepath.Join(folder, "."+base+"."+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(n)+".tmp"),
			os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}
