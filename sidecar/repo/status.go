package repo

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// status is what counts of the status that a Pipy reports every few seconds, as JSON.
type status struct {
	// UUID is its own, which another process of the same proxy has not.
	UUID string `json:"uuid"`
	// Version is the entity tag of the manifest that it runs. It is empty until it has
	// loaded a second one.
	Version string `json:"version"`
}

// hearStatus takes a status.
func (s *session) hearStatus(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(headWithin))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestStatus))
	if err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), code)
		return
	}
	var said status
	if err := json.Unmarshal(body, &said); err != nil {
		http.Error(w, "the body is not a status: "+err.Error(), http.StatusBadRequest)
		return
	}
	runs, refused := s.stock.hear(said)
	if runs != "" {
		s.ack(runs)
	}
	if refused != "" {
		s.reject(mirror.Status{Version: refused, Error: "Pipy has loaded this version and goes on with the one before; its log says why"})
	}
	// By 206 a repository says that it needs no more of metrics than what changed.
	w.WriteHeader(http.StatusPartialContent)
}
