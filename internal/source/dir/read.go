package dir

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// maxFile limits one file and maxTotal all of them together, in bytes.
	maxFile  = 32 << 20
	maxTotal = 256 << 20
)

// stdinName is the name of standard input in Problems.
const stdinName = "<stdin>"

// reader reads files and remembers their content, so that a file that becomes unreadable
// keeps its last objects.
type reader struct {
	codec *codec
	paths []string
	stdin io.Reader
	// names are the files of each path when it last existed.
	names map[string][]string
	// files has the last content by file name.
	files map[string]*file
	// folders are those that were found, and the parents of named files.
	folders []string
	missing []missing
}

// file is the content of a file.
type file struct {
	sum      [sha256.Size]byte
	objects  []object
	problems []mesh.Problem
	// unread are the kinds of ignored objects.
	unread []schema.GroupKind
	// broken says that there may be objects that could not be read.
	broken bool
}

func newReader(paths []string, opts Options) *reader {
	r := &reader{codec: newCodec(opts.Mapper.Kinds), stdin: opts.Stdin, names: make(map[string][]string)}
	for _, path := range paths {
		if path != "-" {
			path = filepath.Clean(path)
		}
		r.paths = append(r.paths, path)
	}
	// The order of the paths must not matter.
	slices.Sort(r.paths)
	return r
}

// missing is a path that does not exist.
type missing struct {
	path string
	err  error
}

// find resolves the paths to files. A missing path keeps its former files.
func (r *reader) find() {
	r.folders, r.missing = nil, nil
	for _, path := range r.paths {
		names, err := r.list(path)
		if err != nil {
			r.missing = append(r.missing, missing{path, err})
			continue
		}
		r.names[path] = names
	}
}

// read reads all files. Files of missing paths are unchanged.
func (r *reader) read() ([]object, []mesh.Problem) {
	r.find()
	former := r.files
	r.files = make(map[string]*file)
	var objects []object
	var problems []mesh.Problem
	total := 0
	for _, path := range r.paths {
		isMissing := slices.ContainsFunc(r.missing, func(m missing) bool { return m.path == path })
		for _, name := range r.names[path] {
			if r.files[name] != nil {
				continue
			}
			now := former[name]
			if !isMissing {
				now = r.readFile(name, now, &total)
			}
			r.files[name] = now
			objects, problems = append(objects, now.objects...), append(problems, now.problems...)
		}
	}
	objects, duplicates := unique(objects)
	return objects, append(problems, duplicates...)
}

// unread counts the ignored objects by kind.
func (r *reader) unread() map[schema.GroupKind]int {
	kinds := make(map[schema.GroupKind]int)
	for _, f := range r.files {
		for _, kind := range f.unread {
			kinds[kind]++
		}
	}
	return kinds
}

// list returns the files of a path, sorted.
func (r *reader) list(path string) ([]string, error) {
	if path == "-" {
		if r.stdin == nil {
			return nil, errStdin
		}
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		r.folders = append(r.folders, filepath.Dir(path))
		return []string{path}, nil
	}
	var names []string
	// os.DirFS follows a path that is a link to a folder.
	err = fs.WalkDir(os.DirFS(path), ".", func(below string, entry fs.DirEntry, err error) error {
		name := filepath.Join(path, below)
		switch {
		case err != nil && below == ".":
			return err
		case err != nil:
			// An unreadable folder keeps its former files.
			names = append(names, r.below(path, name)...)
			return nil
		case strings.HasPrefix(entry.Name(), ".") && below != ".":
			// Mounted ConfigMaps have their files in a hidden folder, with links to them.
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			r.folders = append(r.folders, name)
			return nil
		case !manifest.IsFile(name):
			return nil
		}
		// Follow links, but skip pipes and devices.
		if info, err := os.Stat(name); err != nil || info.Mode().IsRegular() {
			names = append(names, name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// below returns the former files of the path that are in the folder.
func (r *reader) below(path, folder string) []string {
	return slices.DeleteFunc(slices.Clone(r.names[path]), func(name string) bool {
		return !strings.HasPrefix(name, folder+string(filepath.Separator))
	})
}

// readFile reads a file and adds its size to the total. If it has errors, former objects
// that may be hidden by them are kept.
func (r *reader) readFile(name string, former *file, total *int) *file {
	text, err := r.text(name)
	*total += len(text)
	sum := sha256.Sum256(text)
	title := name
	if name == "-" {
		title = stdinName
	}
	now := &file{}
	switch {
	case err == nil && former != nil && former.sum == sum:
		return former
	case err == nil && *total > maxTotal:
		now.fail(fileRef(title), "%s: ignored, because all files together exceed %d MiB; read fewer", title, maxTotal>>20)
	case err == nil && len(text) > maxFile:
		now.fail(fileRef(title), "%s: the file exceeds %d MiB; split it", title, maxFile>>20)
	case err == nil && !utf8.Valid(text):
		now.fail(fileRef(title), "%s: the file is not UTF-8 text; convert it", title)
	case err != nil:
		now.fail(fileRef(title), "%s", plain(err))
	case former != nil && len(former.objects) > 0 && len(bytes.TrimSpace(text)) == 0:
		// It may be in the middle of being written.
		now.fail(fileRef(title), "%s: the file is empty; to delete its objects, remove the file", title)
	default:
		now = r.codec.parse(title, text)
		now.sum = sum
	}
	if now.broken && former != nil {
		now.keep(former)
	}
	return now
}

// text returns the content of a file, up to one byte more than maxFile.
func (r *reader) text(name string) ([]byte, error) {
	from := r.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(from, maxFile+1)); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return b.Bytes(), nil
}

// fail adds a Problem that may hide objects.
func (f *file) fail(ref mesh.ObjectRef, format string, args ...any) {
	f.broken = true
	f.problems = append(f.problems, mesh.Problem{Object: ref, Reason: ReasonUnreadable, Message: fmt.Sprintf(format, args...)})
}

// keep adds the objects of the former file that this one lacks.
func (f *file) keep(former *file) {
	have := make(map[string]bool, len(f.objects))
	for i := range f.objects {
		have[f.objects[i].key()] = true
	}
	for _, o := range former.objects {
		if !have[o.key()] {
			f.objects = append(f.objects, o)
		}
	}
}

// fileRef refers to a file, in Problems that concern no single object.
func fileRef(title string) mesh.ObjectRef { return mesh.ObjectRef{Kind: "File", Name: title} }

// plain returns an error's text on one line.
func plain(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
