package cni

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"
)

// TestGone holds what answers of the API server mean: only those after which nobody wants
// the plug-in take it off the node.
func TestGone(t *testing.T) {
	status, body := 0, ""
	var asked string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Authorization") + " " + r.URL.Path
		w.WriteHeader(status)
		w.Write([]byte(body))
	}))
	defer server.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "secret\n")
	write(t, filepath.Join(dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(dir, u.Hostname(), u.Port())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		status     int
		body       string
		gone, fail bool
	}{
		{200, `{"metadata":{}}`, false, false},
		{200, `{"metadata":{"deletionTimestamp":"2026-11-22T00:00:00Z"}}`, true, false},
		{200, `nonsense`, false, true},
		{404, `{}`, true, false},
		{403, `{}`, true, false},
		{401, `{}`, true, false},
		{500, `{}`, false, true},
		{429, `{}`, false, true},
	} {
		status, body = test.status, test.body
		gone, err := a.gone("osm-system", Name)
		if gone != test.gone || (err != nil) != test.fail {
			t.Errorf("%d %s: gone is %v and the error %v, want %v and %v", test.status, test.body, gone, err, test.gone, test.fail)
		}
		if want := "Bearer secret /apis/apps/v1/namespaces/osm-system/daemonsets/outrigger-cni"; asked != want {
			t.Errorf("it asked %q, want %q", asked, want)
		}
	}
	server.Close()
	if gone, err := a.gone("osm-system", Name); gone || err == nil {
		t.Errorf("without an API server: gone is %v and the error %v", gone, err)
	}
}
