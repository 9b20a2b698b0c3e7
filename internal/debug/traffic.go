package debug

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// MaxPeriod is the longest period of the page of traffic.
const MaxPeriod = 5 * time.Minute

// traffic shows what the mesh's proxies have counted during ?period=, a duration that the
// answer waits for, or without it since they started. With ?namespace=, which may be given
// several times, only the proxies of those namespaces are read.
func (s Sources) traffic(w http.ResponseWriter, r *http.Request) {
	var period time.Duration
	query := r.URL.Query()
	if text := query.Get("period"); text != "" {
		var err error
		if period, err = time.ParseDuration(text); err != nil || period < 0 || period > MaxPeriod {
			http.Error(w, fmt.Sprintf("period %q: give a duration such as 10s, at most %s", text, MaxPeriod), http.StatusBadRequest)
			return
		}
	}
	report, err := s.Traffic(r.Context(), period, query["namespace"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client has gone.
	_ = json.NewEncoder(w).Encode(report)
}
