package debug

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// MaxPeriod is the longest period of the page of traffic.
const MaxPeriod = 5 * time.Minute

// badRequest is the error of a request with a wrong parameter.
type badRequest struct{ error }

// traffic shows what the mesh's proxies have counted during ?period=, a duration that the
// answer waits for, or without it since they started. With ?namespace=, which may be given
// several times, only the proxies of those namespaces are read.
func (s Sources) traffic(w http.ResponseWriter, r *http.Request) {
	report, err := s.report(r)
	switch {
	case errors.As(err, &badRequest{}):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client has gone.
	_ = json.NewEncoder(w).Encode(report)
}

func (s Sources) report(r *http.Request) (any, error) {
	var period time.Duration
	query := r.URL.Query()
	if text := query.Get("period"); text != "" {
		var err error
		if period, err = time.ParseDuration(text); err != nil || period < 0 || period > MaxPeriod {
			return nil, badRequest{fmt.Errorf("period %q: give a duration such as 10s, at most %s", text, MaxPeriod)}
		}
	}
	return s.Traffic(r.Context(), period, query["namespace"])
}
