package repo

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// stock is what is known of a Pipy that loads its files itself, without an agent.
type stock struct {
	mu sync.Mutex
	// loads is the version whose manifest it was given last, or, if it was given none,
	// the one that it runs.
	loads string
	// instance is the program's UUID, and runs the version that it runs.
	instance, runs string
	// files are those of that version: it asks for one after the other, and must not
	// get some of another. They are kept for as long as it may still ask.
	files  mirror.Set
	loaded time.Time
	// told is closed when the version changes, or loads is known at last; nil if nobody
	// waits for it.
	told chan struct{}
	// sockets is how many WebSockets it has.
	sockets int
}

const (
	// loadWithin is how long a Pipy may take from one file to the next, and startWithin
	// how long from the last one until it runs them.
	loadWithin  = time.Minute
	startWithin = 12 * time.Second
	// etagsFile is what is asked for by a program that watches a folder.
	etagsFile = "_etags"
)

// tell has those who wait hear of another version.
func (s *stock) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
}

func (s *stock) wake() {
	if s.told != nil {
		close(s.told)
		s.told = nil
	}
}

// load notes that the manifest was given away.
func (s *stock) load(version string, files mirror.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads, s.files, s.loaded = version, files, time.Now()
}

// hear notes what a Pipy says of itself. It returns the version that it runs, and the
// one that it has loaded and does not run although it had the time, each empty if there
// is none or it is not known.
func (s *stock) hear(said status) (runs, refused string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := strings.Trim(shortened(said.Version), `"`)
	switch {
	case version != "":
		s.runs = version
	case shortened(said.UUID) != s.instance:
		// It runs what it has loaded first.
		s.runs = s.loads
	}
	s.instance = shortened(said.UUID)
	if s.loads == "" && s.runs != "" {
		// It has loaded it from another replica, or before this one began.
		s.loads = s.runs
		s.wake()
	}
	if s.runs != s.loads && !s.loaded.IsZero() && time.Since(s.loaded) > startWithin {
		refused = s.loads
	}
	return s.runs, refused
}

// loading returns the files of the last manifest as long as they are being loaded, else
// the others.
func (s *stock) loading(current mirror.Set) mirror.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.loads == "" || s.files.Len() == 0:
	case time.Since(s.loaded) > loadWithin:
		s.files = mirror.Set{}
	default:
		s.loaded = time.Now()
		return s.files
	}
	return current
}

// serveStock speaks the protocol of Pipy's repositories.
func (s *session) serveStock(w http.ResponseWriter, r *http.Request, name string) {
	set, version, ok := s.feed.Current()
	switch {
	case !ok:
		http.Error(w, "nothing is known yet; ask again in a moment", http.StatusServiceUnavailable)
	case r.Method == http.MethodPost && name == "":
		s.hearStatus(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "only GET and HEAD are answered, and POST of a status at the whole", http.StatusMethodNotAllowed)
	case name == "":
		manifest, err := manifestOf(set, s.server.options.Main)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if r.Method == http.MethodGet {
			s.stock.load(version, set)
		}
		s.text(w, r, version, manifest)
		if r.Method == http.MethodGet {
			s.conn.Sent(version, 1, len(manifest))
		}
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		s.socket(w, r)
	case name == etagsFile:
		s.text(w, r, version, etagsOf(set))
	default:
		file, ok := s.stock.loading(set).Get(name)
		if !ok {
			http.Error(w, "there is no such file", http.StatusNotFound)
			return
		}
		s.text(w, r, file.Digest().String(), file.Text)
		if r.Method == http.MethodGet {
			s.conn.Sent(version, 1, len(file.Text))
		}
	}
}

// text answers with a text of which the tag is a digest.
func (s *session) text(w http.ResponseWriter, r *http.Request, tag, text string) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Content-Length", strconv.Itoa(len(text)))
	header.Set("ETag", quoted(tag))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method == http.MethodHead {
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	_, _ = io.WriteString(w, text)
}

func quoted(tag string) string { return `"` + tag + `"` }

// manifestOf returns the list of the files, main first.
func manifestOf(set mirror.Set, main string) (string, error) {
	if _, ok := set.Get(main); !ok {
		return "", fmt.Errorf("there is no %s among the files of this proxy", main)
	}
	var manifest strings.Builder
	manifest.WriteString("/" + main + "\n")
	for _, name := range set.Names() {
		if name != main {
			manifest.WriteString("/" + name + "\n")
		}
	}
	return manifest.String(), nil
}

// etagsOf returns the list of the files, each with its entity tag.
func etagsOf(set mirror.Set) string {
	var list bytes.Buffer
	for _, name := range set.Names() {
		file, _ := set.Get(name)
		fmt.Fprintf(&list, "/%s#%s\n", name, quoted(file.Digest().String()))
	}
	return list.String()
}
