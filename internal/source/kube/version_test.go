package kube_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
)

// counter counts the requests of clients with its config.
type counter struct {
	config *rest.Config
	n      atomic.Int64
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func newCounter(config *rest.Config) *counter {
	c := &counter{config: rest.CopyConfig(config)}
	c.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			c.n.Add(1)
			return next.RoundTrip(r)
		})
	})
	return c
}

func (c *counter) reset()       { c.n.Store(0) }
func (c *counter) count() int64 { return c.n.Load() }

func TestNativeSidecarsByVersion(t *testing.T) {
	tests := []struct {
		version string
		want    bool
		wantErr string
	}{
		{"v1.28.15", false, ""},
		{"v1.29.0", true, ""},
		{"v1.30.4-eks-a737599", true, ""},
		{"v1.33.1+k3s1", true, ""},
		{"v2.0.0", true, ""},
		{"latest", false, `reading the API server's version "latest"`},
	}
	for _, tt := range tests {
		t.Run(tt.version, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprintf(w, `{"major": "1", "minor": "29+", "gitVersion": %q}`, tt.version)
			}))
			defer server.Close()
			source := newSource(t, &rest.Config{Host: server.URL}, slog.New(slog.DiscardHandler))
			got, err := source.NativeSidecars(t.Context())
			if got != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("NativeSidecars() = %v, %v, want %v and an error with %q", got, err, tt.want, tt.wantErr)
			}
		})
	}
}

// TestNativeSidecarsAsksOnce has many concurrent callers, one that does not wait, and an API
// server whose first answer is an error.
func TestNativeSidecarsAsksOnce(t *testing.T) {
	var asked atomic.Int64
	var failing atomic.Bool
	held := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		<-held
		if failing.Load() {
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(`{"gitVersion": "v1.30.0"}`))
	}))
	defer server.Close()

	source := newSource(t, &rest.Config{Host: server.URL}, slog.New(slog.DiscardHandler))
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := source.NativeSidecars(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that does not wait: %v", err)
	}
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			if native, err := source.NativeSidecars(t.Context()); err != nil || !native {
				t.Errorf("NativeSidecars() = %v, %v", native, err)
			}
		})
	}
	close(held)
	group.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("the API server was asked %d times", n)
	}

	source = newSource(t, &rest.Config{Host: server.URL}, slog.New(slog.DiscardHandler))
	failing.Store(true)
	if _, err := source.NativeSidecars(t.Context()); err == nil {
		t.Error("no error from an API server that fails")
	}
	failing.Store(false)
	if native, err := source.NativeSidecars(t.Context()); err != nil || !native {
		t.Errorf("once the API server answers: %v, %v", native, err)
	}
}
