package probe

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestHooks calls the app's hooks through the agent and without it, by a client such as the
// kubelet's. The kubelet takes a hook for done if its request does not fail, whatever the
// status is.
func TestHooks(t *testing.T) {
	plain, secure := newApp(t, httptest.NewServer), newApp(t, httptest.NewTLSServer)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closedPort := int32(closed.Addr().(*net.TCPAddr).Port)
	closed.Close()
	secret := []agentspec.Header{{Name: "authorization", Value: "Bearer x"}, {Name: "X-Other", Value: "y"}}
	tests := map[string]struct {
		port    int32
		scheme  string
		url     string
		headers []agentspec.Header
		done    bool
	}{
		"ok":           {plain.port(), "HTTP", "/200", nil, true},
		"error":        {plain.port(), "HTTP", "/500", nil, true},
		"not found":    {plain.port(), "HTTP", "/404", nil, true},
		"no content":   {plain.port(), "", "/204", nil, true},
		"redirect":     {plain.port(), "HTTP", "/to-good", nil, true},
		"elsewhere":    {plain.port(), "HTTP", "/elsewhere", nil, true},
		"round":        {plain.port(), "HTTP", "/to-itself", nil, false},
		"refused":      {closedPort, "HTTP", "/", nil, false},
		"broken":       {plain.port(), "HTTP", "/broken", nil, false},
		"cut":          {plain.port(), "HTTP", "/cut", nil, true},
		"endless":      {plain.port(), "HTTP", "/endless", nil, true},
		"two seconds":  {plain.port(), "HTTP", "/two-seconds", nil, true},
		"tls":          {secure.port(), "HTTPS", "/200", nil, true},
		"tls error":    {secure.port(), "HTTPS", "/503", nil, true},
		"plain at tls": {secure.port(), "HTTP", "/200", nil, true}, // a Go server answers 400
		"tls at plain": {plain.port(), "HTTPS", "/record", secret, true},
	}
	var probes []agentspec.Probe
	for name, tt := range tests {
		probes = append(probes, agentspec.Probe{
			Path: "/app-lifecycle/" + strings.ReplaceAll(name, " ", "-"), Kind: agentspec.HTTP, Hook: agentspec.PostStart,
			Scheme: tt.scheme, Port: tt.port, URL: tt.url, Headers: tt.headers,
		})
	}
	agent := newTestAgent(t, probes...)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kubelet := &http.Client{CheckRedirect: sameHost, Transport: &http.Transport{
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec
			}}
			defer kubelet.CloseIdleConnections()
			if name != "tls at plain" {
				scheme := "http://"
				if tt.scheme == "HTTPS" {
					scheme = "https://"
				}
				response, err := kubelet.Get(scheme + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(tt.port))) + tt.url)
				if err == nil {
					response.Body.Close()
				}
				if (err == nil) != tt.done {
					t.Errorf("without the agent: %v", err)
				}
			}
			response, err := kubelet.Get(agent.url + "/app-lifecycle/" + strings.ReplaceAll(name, " ", "-"))
			if err == nil {
				response.Body.Close()
			}
			if (err == nil) != tt.done {
				t.Errorf("the hook's request ends with %v, should it be done: %t", err, tt.done)
			}
			if name == "tls at plain" {
				select {
				case r := <-plain.request:
					if r.Header.Get("Authorization") != "" || r.Header.Get("X-Other") != "y" {
						t.Errorf("in plaintext the app gets the headers %v", r.Header)
					}
				default:
					t.Error("the app is not called in plaintext")
				}
			}
		})
	}
}

// TestHooksAreAwaited calls finish before, while and after hooks run.
func TestHooksAreAwaited(t *testing.T) {
	fresh := func() *hooks {
		return newHooks([]agentspec.Probe{{Path: "/a", Hook: agentspec.PreStop}, {Path: "/b", Hook: agentspec.PostStart}, {Path: "/c"}})
	}
	ends := func(h *hooks, arrival time.Duration, force chan struct{}) chan struct{} {
		over := make(chan struct{})
		go func() { h.finish(arrival, force); close(over) }()
		return over
	}
	within := func(over chan struct{}, d time.Duration) bool {
		select {
		case <-over:
			return true
		case <-time.After(d):
			return false
		}
	}
	h := fresh()
	h.begin("/a")
	h.end()
	if !within(ends(h, time.Hour, nil), patience) {
		t.Error("a hook that is over is waited for")
	}
	h = fresh()
	over := ends(h, time.Hour, nil)
	if within(over, 50*time.Millisecond) {
		t.Error("a hook that may still come is not waited for")
	}
	h.begin("/a")
	if within(over, 50*time.Millisecond) {
		t.Error("a running hook is not waited for")
	}
	h.end()
	if !within(over, patience) {
		t.Error("the wait does not end with the hook")
	}
	h = fresh()
	if !within(ends(h, time.Millisecond, nil), patience) || !within(ends(h, time.Hour, nil), patience) {
		t.Error("a hook that never comes is waited for")
	}
	h = fresh()
	force := make(chan struct{})
	h.begin("/a")
	over = ends(h, time.Millisecond, force)
	if within(over, 50*time.Millisecond) {
		t.Error("a running hook is not waited for after the others' time")
	}
	close(force)
	if !within(over, patience) {
		t.Error("a second signal does not end the wait")
	}
	if !within(ends(newHooks(nil), time.Hour, nil), patience) {
		t.Error("without hooks there is a wait")
	}
}
