package pipy

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

//go:embed codebase/*.js
var codebase embed.FS

// scripts are the program, which is the same for every proxy.
var scripts = mustReadScripts()

func mustReadScripts() []*mirror.File {
	const dir = "codebase"
	entries, err := codebase.ReadDir(dir)
	if err != nil {
		panic(fmt.Sprintf("pipy: reading the scripts: %v", err))
	}
	files := make([]*mirror.File, len(entries))
	for i, entry := range entries {
		text, err := codebase.ReadFile(path.Join(dir, entry.Name()))
		if err == nil {
			files[i], err = mirror.NewFile(entry.Name(), string(text))
		}
		if err != nil {
			panic(fmt.Sprintf("pipy: reading the scripts: %v", err))
		}
	}
	return files
}

var _ driver.Translator = Driver{}

// Translate returns the scripts and the documents of the proxy that the View is of.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	set := newTranslator().set(view)
	files := make([]driver.File, 0, set.Len())
	for _, name := range set.Names() {
		file, _ := set.Get(name)
		files = append(files, driver.File{Name: name, Content: []byte(file.Text)})
	}
	return files, nil
}

// translator makes documents of Views. What it returns is a pure function of the
// View. It remembers what it made, so that a View costs what differs from the one
// before, and proxies that see the same share it. It is safe for use by many
// goroutines.
type translator struct {
	outbounds *delivery.Outbounds[string, mirror.Set]
	documents *delivery.Cache[documentKey, documentState]
}

// How many states of Outbounds and how many documents are remembered at least. What
// is forgotten is made again.
const (
	manyOutbounds = 4096
	manyDocuments = 1 << 15
)

// newTranslator returns a translator that remembers nothing yet.
func newTranslator() *translator {
	return &translator{
		outbounds: delivery.NewOutbounds[string, mirror.Set](manyOutbounds),
		documents: delivery.NewCache[documentKey, documentState](manyDocuments),
	}
}

// documentKey is a part of a View: its digest says all of it but which kind it is.
type documentKey struct {
	kind string
	part mesh.Digest
}

type documentState struct {
	sync.Mutex
	file *mirror.File
}

// set returns the files of the proxy that the View is of: the scripts and the
// documents.
func (t *translator) set(view *mesh.View) mirror.Set {
	own := []*mirror.File{
		newDocument(settingsFile, settings(view.Proxy, view.Settings)),
		t.document(documentKey{inboundFile, view.Inbound.Digest()}, inboundFile, func() any { return inbound(view.Inbound) }),
		t.document(documentKey{egressFile, view.Egress.Digest()}, egressFile, func() any { return egress(view.Egress) }),
	}
	changes := make([]mesh.Change[*mirror.File], 0, len(own)+len(scripts))
	for _, files := range [][]*mirror.File{own, scripts} {
		for _, file := range files {
			changes = append(changes, mesh.Change[*mirror.File]{Name: file.Name, Value: file})
		}
	}
	return t.outbound(view.Outbound).With(changes...)
}

// outbound returns the documents of the Outbound's destinations and backends.
func (t *translator) outbound(outbound *mesh.Outbound) mirror.Set {
	return t.outbounds.Update(outbound.Scope, outbound, func(former *mesh.Outbound, documents mirror.Set) mirror.Set {
		var changes []mesh.Change[*mirror.File]
		for change := range outbound.Destinations.Diff(former.Destinations) {
			changes = append(changes, documentChange(t, destinationsDir, change, func(d *mesh.Destination) any { return destination(d) }))
		}
		for change := range outbound.Backends.Diff(former.Backends) {
			changes = append(changes, documentChange(t, backendsDir, change, func(b *mesh.Backend) any { return backend(b) }))
		}
		return documents.With(changes...)
	})
}

// documentChange returns the change of a document that a change of a part is.
func documentChange[P mesh.Digester](t *translator, dir string, change mesh.Change[P], content func(P) any) mesh.Change[*mirror.File] {
	name := documentName(dir, change.Name)
	if change.Delete {
		return mesh.Change[*mirror.File]{Name: name, Delete: true}
	}
	file := t.document(documentKey{dir, change.Value.Digest()}, name, func() any { return content(change.Value) })
	return mesh.Change[*mirror.File]{Name: name, Value: file}
}

// document returns the document of a part, which the function makes if it is not
// remembered.
func (t *translator) document(key documentKey, name string, content func() any) *mirror.File {
	state := t.documents.Get(key)
	state.Lock()
	defer state.Unlock()
	if state.file == nil {
		state.file = newDocument(name, content())
	}
	return state.file
}

// newDocument returns a document. The name is one of documentName or a constant, and
// the content has no value without a JSON form, so nothing of a View can make it fail.
func newDocument(name string, content any) *mirror.File {
	text, err := json.Marshal(content)
	if err != nil {
		panic(fmt.Sprintf("pipy: writing %s: %v", name, err))
	}
	file, err := mirror.NewFile(name, string(text)+"\n")
	if err != nil {
		panic(fmt.Sprintf("pipy: writing %s: %v", name, err))
	}
	return file
}

// longestElement is how long an element of a document's name can be before it is
// replaced: file systems take 255 bytes.
const longestElement = 200

// documentName returns the name of the file of what has the name, which the document
// itself has in full. A name that is no path is replaced by its digest.
func documentName(dir, name string) string {
	for element := range strings.SplitSeq(name, "/") {
		if element == "" || len(element) > longestElement || element[0] == '.' || strings.ContainsFunc(element, unusual) {
			return dir + "by-digest/" + mesh.DigestBytes([]byte(name)).String() + documentFileType
		}
	}
	return dir + name + documentFileType
}

// unusual reports whether names of files and paths of URLs had better not hold the
// character.
func unusual(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._:@", r)
}
