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

// streamPage describes a stream on a debug page.
type streamPage struct {
	Proxy    string        `json:"proxy"`
	UID      string        `json:"uid"`
	Identity mesh.Identity `json:"identity"`
	Client   string        `json:"client,omitempty"`
	Protocol string        `json:"protocol"`
	Since    time.Time     `json:"since"`
	// View is the digest of the View that the proxy is sent, and Acked of the last View
	// that it is known to run.
	View  string `json:"view"`
	Acked string `json:"acked,omitempty"`
	// Busy is set while something is unsent or unacknowledged.
	Busy    bool              `json:"busy"`
	Types   []typePage        `json:"types,omitempty"`
	Refused map[string]string `json:"refused,omitempty"`
}

type typePage struct {
	Type string `json:"type"`
	// Wildcard is set if the client subscribes to all resources. Names is the number of
	// names that it subscribes to explicitly.
	Wildcard bool `json:"wildcard,omitempty"`
	Names    int  `json:"names,omitempty"`
	// Unknown is the number of subscribed names without a resource.
	Unknown int `json:"unknown,omitempty"`
	// Resources is the number of the proxy's resources. Version is the digest of all of
	// them.
	Resources int    `json:"resources"`
	Version   string `json:"version,omitempty"`
	// Pending is the number of resources that the proxy lacks or has in another version.
	Pending int `json:"pending,omitempty"`
	// Unanswered is the nonce of the unacknowledged response.
	Unanswered string `json:"unanswered,omitempty"`
	// Awaited is the number of names that the client is expected to subscribe to.
	Awaited int `json:"awaited,omitempty"`
}

// Names returns the pod and its UID, for delivery.Debug.
func (p streamPage) Names() (pod, uid string) { return p.Proxy, p.UID }

func (s *stream) page() streamPage {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := streamPage{
		UID: s.peer.ProxyUID, Identity: s.peer.Identity, Client: s.build, Protocol: "delta", Since: s.began, Busy: !s.finished(),
	}
	if s.sotw {
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
			Type: shortType(t.URL), Wildcard: t.wildcard, Names: len(names) + unknown, Unknown: unknown,
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
	p.Refused = make(map[string]string, len(s.refusals))
	for ref, message := range s.refusals {
		p.Refused[ref.String()] = message
	}
	return p
}

// Debug returns a handler that answers GET with JSON: by default a list of the streams,
// each with what the client subscribes to and was sent; with ?proxy=UID the resources
// of that proxy, connected or not. Secrets are redacted.
func (s *Server) Debug() http.Handler {
	connected := func() []streamPage {
		pages := []streamPage{}
		for _, stream := range s.allStreams() {
			pages = append(pages, stream.page())
		}
		return pages
	}
	return delivery.Debug(s.ctrl, connected, func(view *mesh.View) (any, error) {
		return s.resources(s.options.Translate(view)), nil
	})
}

// resources returns the resources by type and name.
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
		page[shortType(t.URL)] = all
	}
	return page
}

// readable returns the resource as a JSON value with its secrets redacted, or the error
// of decoding it.
func readable(r *Resource) any {
	var content []byte
	message, err := r.Message()
	if err == nil {
		content, err = protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	}
	var page any
	if err == nil {
		err = json.Unmarshal(content, &page)
	}
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	return redact(page)
}

// secretFields are the fields of Envoy's messages that hold secrets in any form.
var secretFields = []string{"private_key", "password", "session_ticket_keys", "private_key_provider", "generic_secret", "pkcs12"}

// redact returns the page with secrets replaced, except for the names of files.
func redact(page any) any {
	switch page := page.(type) {
	case []any:
		for i := range page {
			page[i] = redact(page[i])
		}
	case map[string]any:
		for field, value := range page {
			if !slices.Contains(secretFields, field) {
				page[field] = redact(value)
			} else if source, ok := value.(map[string]any); !ok || source["filename"] == nil {
				page[field] = "not shown"
			}
		}
	}
	return page
}
