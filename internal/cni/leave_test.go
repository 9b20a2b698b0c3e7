package cni

import (
	"bytes"
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGone checks which answers of the API server mean that the plug-in must be removed
// from the node.
func TestGone(t *testing.T) {
	status, body := 0, ""
	var asked string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Authorization") + " " + r.URL.Path
		w.WriteHeader(status)
		w.Write([]byte(body))
	}))
	defer server.Close()
	dir, host, port := account(t, server)
	a, err := newAPI(dir, host, port)
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

// account returns the folder of a service account for the server, and its address.
func account(t *testing.T, server *httptest.Server) (dir, host, port string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "token"), "secret\n")
	write(t, filepath.Join(dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return dir, u.Hostname(), u.Port()
}

// TestRun checks that the plug-in is installed and reinstalled while the program runs, and
// removed at its end only if the DaemonSet is gone.
func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		status    int
		daemonSet string
		stays     bool
		fails     bool
	}{
		"upgrade":         {status: 200, daemonSet: "osm-system/outrigger-cni", stays: true},
		"removal":         {status: 404, daemonSet: "osm-system/outrigger-cni"},
		"no answer":       {status: 500, daemonSet: "osm-system/outrigger-cni", stays: true, fails: true},
		"nobody to ask":   {status: 404, stays: true},
		"rights are gone": {status: 403, daemonSet: "osm-system/outrigger-cni"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				w.Write([]byte(`{"metadata":{}}`))
			}))
			defer server.Close()
			before := map[string]string{"10-pods.conflist": ptp}
			n := newNode(t, before)
			n.daemonSet, n.leaveTime = test.daemonSet, 50*time.Millisecond
			var host, port string
			n.accountDir, host, port = account(t, server)
			t.Setenv("KUBERNETES_SERVICE_HOST", host)
			t.Setenv("KUBERNETES_SERVICE_PORT", port)
			// The readiness probe runs concurrently.
			probe := &node{binDir: n.binDir, confDir: n.confDir}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- n.run(ctx) }()
			becomesReady(t, probe)
			write(t, filepath.Join(n.confDir, "10-pods.conflist"), ptp)
			becomesReady(t, probe)
			cancel()
			if err := <-done; (err != nil) != test.fails {
				t.Errorf("it ends with %v", err)
			}
			if got := conf(t, n); equal(got, before) == test.stays {
				t.Errorf("the configuration is %v", got)
			}
			if err := probe.ready(); (err == nil) != test.stays {
				t.Errorf("installed: %v", err)
			}
		})
	}
}

func becomesReady(t *testing.T, n *node) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		err := n.ready()
		if err == nil {
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(err)
		}
	}
}

// TestCommand checks that invalid command lines are rejected.
func TestCommand(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"help"}, exitOK, "outrigger-cni run"},
		{[]string{"stop"}, exitMisused, `unknown command "stop"`},
		{[]string{"run", "now"}, exitMisused, `unknown argument "now"`},
		{[]string{"run", "--daemonset", "outrigger-cni"}, exitMisused, "is not NAMESPACE/NAME"},
		{[]string{"ready", "--bin-dir", t.TempDir()}, exitFailed, "no such file"},
	} {
		var out bytes.Buffer
		if code := command(t.Context(), test.args[0], test.args[1:], &out, &out); code != test.code || !strings.Contains(out.String(), test.want) {
			t.Errorf("%q: exit code %d, want %d, and output with %q:\n%s", test.args, code, test.code, test.want, out.String())
		}
	}
}
