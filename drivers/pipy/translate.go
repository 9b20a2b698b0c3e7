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

// scripts are the files of the PipyJS program, which is the same for every proxy.
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

// Translate returns the scripts and the documents of the View's proxy.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	set := newTranslator().set(view)
	files := make([]driver.File, 0, set.Len())
	for _, name := range set.Names() {
		file, _ := set.Get(name)
		files = append(files, driver.File{Name: name, Content: []byte(file.Text)})
	}
	return files, nil
}

// translator translates Views into documents. Its results are a pure function of the
// View, but cached: a new View costs only what differs from the one before, and equal
// parts share their documents across proxies. It is safe for use by many goroutines.
type translator struct {
	outbounds *delivery.Outbounds[string, mirror.Set]
	documents *delivery.Cache[documentKey, documentState]
	automata  *delivery.Cache[string, compiledExpression]
}

// newTranslator returns a translator with empty caches.
func newTranslator() *translator {
	return &translator{
		outbounds: delivery.NewOutbounds[string, mirror.Set](4096),
		documents: delivery.NewCache[documentKey, documentState](1 << 15),
		automata:  delivery.NewCache[string, compiledExpression](maxCompiled),
	}
}

// documentKey identifies a part of a View by its kind and content.
type documentKey struct {
	kind string
	part mesh.Digest
}

type documentState struct {
	sync.Mutex
	file *mirror.File
}

// set returns the files of the View's proxy: the scripts and the documents.
func (t *translator) set(view *mesh.View) mirror.Set {
	own := []*mirror.File{
		t.document(documentKey{settingsFile, mesh.JoinDigests(view.Proxy.Digest(), view.Settings.Digest())}, settingsFile, func(*compiler) any {
			return settings(view.Proxy, view.Settings)
		}),
		t.document(documentKey{inboundFile, view.Inbound.Digest()}, inboundFile, func(x *compiler) any { return inbound(x, view.Inbound) }),
		t.document(documentKey{egressFile, mesh.JoinDigests(view.Egress.Digest(), mesh.DigestOf(view.Outbound.Unknown))}, egressFile, func(x *compiler) any {
			return egress(x, view.Egress, view.Outbound.Unknown)
		}),
	}
	return withFiles(t.outbound(view.Outbound), own)
}

// withFiles returns the set with the files added.
func withFiles(set mirror.Set, files []*mirror.File) mirror.Set {
	changes := make([]mesh.Change[*mirror.File], len(files))
	for i, file := range files {
		changes[i] = mesh.Change[*mirror.File]{Name: file.Name, Value: file}
	}
	return set.With(changes...)
}

// outbound returns what all proxies with the Outbound share: the scripts, and the documents of
// its destinations and backends.
func (t *translator) outbound(outbound *mesh.Outbound) mirror.Set {
	return t.outbounds.Update(outbound.Scope, outbound, func(former *mesh.Outbound, documents mirror.Set) mirror.Set {
		if documents.Len() == 0 {
			documents = withFiles(documents, scripts)
		}
		var changes []mesh.Change[*mirror.File]
		for change := range outbound.Destinations.Diff(former.Destinations) {
			changes = append(changes, documentChange(t, destinationsDir, change, func(x *compiler, d *mesh.Destination) any { return destination(x, d) }))
		}
		for change := range outbound.Backends.Diff(former.Backends) {
			changes = append(changes, documentChange(t, backendsDir, change, func(_ *compiler, b *mesh.Backend) any { return backend(b) }))
		}
		return documents.With(changes...)
	})
}

// documentChange translates the change of a part into the change of its document.
func documentChange[P mesh.Digester](t *translator, dir string, change mesh.Change[P], content func(*compiler, P) any) mesh.Change[*mirror.File] {
	name := documentName(dir, change.Name)
	if change.Delete {
		return mesh.Change[*mirror.File]{Name: name, Delete: true}
	}
	file := t.document(documentKey{dir, change.Value.Digest()}, name, func(x *compiler) any { return content(x, change.Value) })
	return mesh.Change[*mirror.File]{Name: name, Value: file}
}

// document returns the document of a part from the cache, or builds it.
func (t *translator) document(key documentKey, name string, content func(*compiler) any) *mirror.File {
	cached := t.documents.Get(key)
	cached.Lock()
	defer cached.Unlock()
	if cached.file == nil {
		cached.file = newDocument(name, content(&compiler{compiled: t.automata, entries: maxDocumentEntries, work: maxDocumentWork}))
	}
	return cached.file
}

// newDocument returns a document. It can't fail, whatever the View: names are constants
// or come from documentName, and every content has a JSON form.
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

// maxElement bounds the elements of a document's path, in bytes: file systems allow 255.
const maxElement = 200

// documentName returns the path of the document of the named part. A name that is not
// usable as a path is replaced by its digest; the document itself has the full name.
func documentName(dir, name string) string {
	for element := range strings.SplitSeq(name, "/") {
		if element == "" || len(element) > maxElement || element[0] == '.' || strings.ContainsFunc(element, unsafeInPath) {
			return dir + "by-digest/" + mesh.DigestBytes([]byte(name)).String() + documentFileType
		}
	}
	return dir + name + documentFileType
}

// unsafeInPath reports whether a character is avoided in file names and URL paths.
func unsafeInPath(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._:@", r)
}
