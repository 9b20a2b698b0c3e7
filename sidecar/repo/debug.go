package repo

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// sessionPage is a connected proxy on the debug page.
type sessionPage struct {
	Proxy       string        `json:"proxy,omitempty"`
	UID         string        `json:"uid"`
	Identity    mesh.Identity `json:"identity"`
	Since       time.Time     `json:"since"`
	Connections int           `json:"connections"`
	// Version is the version of the current files, and Acked the last one that the proxy
	// has acknowledged.
	Version string `json:"version,omitempty"`
	Acked   string `json:"acked,omitempty"`
	Files   int    `json:"files"`
	View    string `json:"view,omitempty"`
	// Refused is the proxy's reason for refusing Version.
	Refused string `json:"refused,omitempty"`
}

// Names implements delivery.Page.
func (p sessionPage) Names() (pod, uid string) { return p.Proxy, p.UID }

func (s *session) page() sessionPage {
	set, version, _ := s.feed.Current()
	p := sessionPage{UID: s.peer.ProxyUID, Identity: s.peer.Identity, Since: s.began, Version: version, Files: set.Len()}
	s.server.mu.Lock()
	p.Connections = len(s.conns)
	s.server.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view != nil {
		p.Proxy, p.View = s.view.Proxy.Name.String(), s.view.Digest().String()
	}
	p.Acked, p.Refused = s.acked, s.rejected.Error
	return p
}

// Debug returns a handler that answers GET with JSON: the connected proxies and their
// versions, or with ?proxy=UID the files of that proxy, connected or not. Files contain no
// secrets, since Views have none.
func (s *Server) Debug() http.Handler {
	connected := func() []sessionPage {
		pages := []sessionPage{}
		for _, session := range s.all() {
			pages = append(pages, session.page())
		}
		return pages
	}
	return delivery.Debug(s.ctrl, connected, func(view *mesh.View) (any, error) {
		set, err := s.files(view)
		if err != nil {
			return nil, err
		}
		files := make(map[string]any)
		for name, file := range set.All() {
			files[name] = readable(file.Text)
		}
		return files, nil
	})
}

// readable returns a text as it is if it is a JSON object, otherwise as a list of lines.
func readable(text string) any {
	if strings.HasPrefix(strings.TrimSpace(text), "{") && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
