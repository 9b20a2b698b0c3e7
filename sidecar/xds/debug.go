package xds

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// Log returns the logger that the Server uses.
func (s *Server) Log() *slog.Logger { return s.log }

// streamPage is what a debug page shows of a stream.
type streamPage struct {
	Proxy    string        `json:"proxy"`
	UID      string        `json:"uid"`
	Identity mesh.Identity `json:"identity"`
	Client   string        `json:"client,omitempty"`
	Protocol string        `json:"protocol"`
	Since    time.Time     `json:"since"`
	// View is what the proxy is sent, and Acked what it is known to run.
	View  string `json:"view"`
	Acked string `json:"acked,omitempty"`
	// Busy says that something is not sent or not answered yet.
	Busy    bool              `json:"busy"`
	Types   []typePage        `json:"types,omitempty"`
	Refused map[string]string `json:"refused,omitempty"`
}

type typePage struct {
	Type string `json:"type"`
	// Wildcard says that all are asked for, and Names how many are by name.
	Wildcard bool `json:"wildcard,omitempty"`
	Names    int  `json:"names,omitempty"`
	// Unknown are how many of the names there are not.
	Unknown int `json:"unknown,omitempty"`
	// Resources are how many there are for the proxy, and Version names them all.
	Resources int    `json:"resources"`
	Version   string `json:"version,omitempty"`
	// Pending are how many it has not, or not as they should be.
	Pending int `json:"pending,omitempty"`
	// Unanswered is the nonce of the response that it has not answered.
	Unanswered string `json:"unanswered,omitempty"`
	// Awaited are names that it is expected to ask for.
	Awaited int `json:"awaited,omitempty"`
}

// Names is for delivery.Debug.
func (p streamPage) Names() (pod, uid string) { return p.Proxy, p.UID }

func (s *stream) page() streamPage {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := streamPage{
		UID: s.peer.ProxyUID, Identity: s.peer.Identity, Client: s.build, Protocol: "delta", Since: s.began, Busy: !s.finished(),
	}
	if s.world {
		p.Protocol = "state of the world"
	}
	if s.view != nil {
		p.Proxy, p.View = s.view.Proxy.Name.String(), s.view.Digest().String()
	}
	if !s.acked.IsZero() {
		p.Acked = s.acked.String()
	}
	for t := range s.all {
		if !t.active {
			continue
		}
		names, unknown := t.all(t.table)
		page := typePage{
			Type: kindOf(t.URL), Wildcard: t.wildcard, Names: len(names) + unknown, Unknown: unknown,
			Resources: t.table.Len(), Pending: len(t.exceptions), Awaited: len(t.expected),
		}
		if t.table.Len() > 0 {
			page.Version = t.table.Digest().String()
		}
		if t.flight != nil {
			page.Unanswered = t.flight.nonce
		}
		p.Types = append(p.Types, page)
	}
	for ref, message := range s.refusals {
		if p.Refused == nil {
			p.Refused = make(map[string]string)
		}
		p.Refused[ref.String()] = message
	}
	return p
}

// Debug returns a page of the streams, what each has asked for and been sent; with
// ?proxy=UID one of the resources of that proxy, connected or not, with nothing that is
// secret. It answers GET with JSON.
func (s *Server) Debug() http.Handler {
	connected := func() []streamPage {
		pages := []streamPage{}
		for _, stream := range s.each() {
			pages = append(pages, stream.page())
		}
		return pages
	}
	return delivery.Debug(s.ctrl, connected, func(view *mesh.View) (any, error) {
		return s.resources(s.options.Translate(view)), nil
	})
}

// resources returns the resources by their types and names.
func (s *Server) resources(config Config) map[string]map[string]any {
	page := make(map[string]map[string]any)
	for i, t := range s.options.Types {
		if i >= len(config) {
			break
		}
		all := make(map[string]any, config[i].Len())
		for name, r := range config[i].All() {
			all[name] = readable(r)
		}
		page[kindOf(t.URL)] = all
	}
	return page
}

// readable returns the resource as JSON has it, or why it can't be read.
func readable(r *Resource) any {
	message, err := r.Message()
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	content, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	var page any
	if err := json.Unmarshal(content, &page); err != nil {
		return map[string]string{"error": err.Error()}
	}
	return public(page)
}

// secretFields are the fields of Envoy's messages that hold something secret, in
// whatever form.
var secretFields = []string{"private_key", "password", "session_ticket_keys", "private_key_provider", "generic_secret", "pkcs12"}

// public returns the page without what is secret, but for the names of files.
func public(page any) any {
	switch page := page.(type) {
	case []any:
		for i := range page {
			page[i] = public(page[i])
		}
	case map[string]any:
		for field, value := range page {
			if !slices.Contains(secretFields, field) {
				page[field] = public(value)
			} else if source, ok := value.(map[string]any); !ok || source["filename"] == nil {
				page[field] = "not shown"
			}
		}
	}
	return page
}
