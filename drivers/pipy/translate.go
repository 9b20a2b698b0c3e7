package pipy

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
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
	outbounds *delivery.Outbounds[string, outboundFiles]
	documents *delivery.Cache[documentKey, documentState]
	automata  *delivery.Cache[string, compiledExpression]
}

// newTranslator returns a translator with empty caches.
func newTranslator() *translator {
	return &translator{
		outbounds: delivery.NewOutbounds[string, outboundFiles](4096),
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
	// entries are those of the tables of its expressions, and over the parts of it with an
	// expression that exceeds a bound.
	entries int
	over    []mesh.Part
}

// outboundFiles are the files for an Outbound. They are immutable.
type outboundFiles struct {
	set mirror.Set
	// over are the destinations with an expression that exceeds a bound, by name.
	over map[string]struct{}
}

// set returns the files of the View's proxy: the scripts and the documents.
func (t *translator) set(view *mesh.View) mirror.Set {
	own := []*mirror.File{
		t.document(documentKey{settingsFile, mesh.JoinDigests(view.Proxy.Digest(), view.Settings.Digest())}, settingsFile, maxDocumentEntries, func(*compiler) any {
			return settings(view.Proxy, view.Settings)
		}).file,
		t.inbound(view).file,
		t.egress(view).file,
	}
	return withFiles(t.outbound(view.Outbound).set, own)
}

func (t *translator) inbound(view *mesh.View) *documentState {
	return t.document(documentKey{inboundFile, view.Inbound.Digest()}, inboundFile, maxDocumentEntries, func(x *compiler) any { return inbound(x, view.Inbound) })
}

func (t *translator) egress(view *mesh.View) *documentState {
	key := documentKey{egressFile, mesh.JoinDigests(view.Egress.Digest(), mesh.DigestOf(view.Outbound.Unknown))}
	return t.document(key, egressFile, maxDocumentEntries, func(x *compiler) any { return egress(x, view.Egress, view.Outbound.Unknown) })
}

// leftOut returns the parts of the View with expressions that exceed a bound.
func (t *translator) leftOut(view *mesh.View) []delivery.Conviction {
	parts := slices.Concat(t.inbound(view).over, t.egress(view).over)
	for _, name := range slices.Sorted(maps.Keys(t.outbound(view.Outbound).over)) {
		parts = append(parts, mesh.Part{Kind: mesh.PartDestination, Name: name})
	}
	return leftOut(parts)
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
func (t *translator) outbound(outbound *mesh.Outbound) outboundFiles {
	return t.outbounds.Update(outbound.Scope, outbound, func(former *mesh.Outbound, files outboundFiles) outboundFiles {
		if files.set.Len() == 0 {
			files.set = withFiles(files.set, scripts)
		}
		changes := make(map[string]mesh.Change[*mirror.File])
		over := maps.Clone(files.over)
		if over == nil {
			over = make(map[string]struct{})
		}
		// The namespaces in which the sum of the expressions has changed.
		namespaces := make(map[string]struct{})
		for change := range outbound.Destinations.Diff(former.Destinations) {
			if before, ok := former.Destinations.Get(change.Name); ok && t.destination(before, maxDocumentEntries).entries > 0 {
				namespaces[before.Service.Namespace] = struct{}{}
			}
			name := documentName(destinationsDir, change.Name)
			delete(over, change.Name)
			if change.Delete {
				changes[name] = mesh.Change[*mirror.File]{Name: name, Delete: true}
				continue
			}
			document := t.destination(change.Value, maxDocumentEntries)
			if document.entries > 0 {
				namespaces[change.Value.Service.Namespace] = struct{}{}
			}
			if len(document.over) > 0 {
				over[change.Name] = struct{}{}
			}
			changes[name] = mesh.Change[*mirror.File]{Name: name, Value: document.file}
		}
		for namespace := range namespaces {
			t.bound(outbound, namespace, changes, over)
		}
		for change := range outbound.Backends.Diff(former.Backends) {
			name := documentName(backendsDir, change.Name)
			if change.Delete {
				changes[name] = mesh.Change[*mirror.File]{Name: name, Delete: true}
				continue
			}
			document := t.document(documentKey{backendsDir, change.Value.Digest()}, name, maxDocumentEntries, func(*compiler) any { return backend(change.Value) })
			changes[name] = mesh.Change[*mirror.File]{Name: name, Value: document.file}
		}
		return outboundFiles{files.set.With(slices.Collect(maps.Values(changes))...), over}
	})
}

// bound replaces the documents of a namespace's destinations that exceed its bound by those in
// which no expression matches.
func (t *translator) bound(outbound *mesh.Outbound, namespace string, changes map[string]mesh.Change[*mirror.File], over map[string]struct{}) {
	left := maxNamespaceEntries
	for name, d := range outbound.Destinations.All() {
		if d.Service.Namespace != namespace {
			continue
		}
		document := t.destination(d, maxDocumentEntries)
		if document.entries > left {
			document = t.destination(d, 0)
		}
		left -= document.entries
		delete(over, name)
		if len(document.over) > 0 {
			over[name] = struct{}{}
		}
		file := documentName(destinationsDir, name)
		changes[file] = mesh.Change[*mirror.File]{Name: file, Value: document.file}
	}
}

// destination returns the document of a destination whose expressions have at most that many
// entries.
func (t *translator) destination(d *mesh.Destination, entries int) *documentState {
	kind := destinationsDir
	if entries == 0 {
		kind += "without expressions"
	}
	return t.document(documentKey{kind, d.Digest()}, documentName(destinationsDir, d.Name), entries, func(x *compiler) any { return destination(x, d) })
}

// document returns the document of a part from the cache, or builds it. It must not be changed.
func (t *translator) document(key documentKey, name string, entries int, content func(*compiler) any) *documentState {
	cached := t.documents.Get(key)
	cached.Lock()
	defer cached.Unlock()
	if cached.file == nil {
		x := &compiler{compiled: t.automata, entries: entries, work: maxDocumentWork}
		if entries == 0 {
			x.work = 0
		}
		cached.file = newDocument(name, content(x))
		cached.entries, cached.over = entries-x.entries, x.over
	}
	return cached
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
