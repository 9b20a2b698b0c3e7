package servingcert_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// webhook serves a test's handler over TLS with a manager's certificate.
type webhook struct {
	listener net.Listener
	handler  atomic.Pointer[http.HandlerFunc]
	calls    atomic.Int64
}

// listen opens the port that serve will answer on.
func listen(t testing.TB) *webhook {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hook := &webhook{listener: listener}
	hook.answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "allowed") })
	return hook
}

func (h *webhook) answer(handler http.HandlerFunc) { h.handler.Store(&handler) }

func (h *webhook) selfCheck() servingcert.SelfCheck {
	return servingcert.SelfCheck{
		Address: h.listener.Addr().String(),
		Review:  []byte("review"),
		Accept: func(answer []byte) error {
			if string(answer) != "allowed" {
				return fmt.Errorf("the answer is %.20q", answer)
			}
			return nil
		},
	}
}

func (h *webhook) serve(t testing.TB, manager *servingcert.Manager) {
	h.serveTLS(t, manager.TLSConfig())
}

func (h *webhook) serveTLS(t testing.TB, config *tls.Config) {
	server := &http.Server{
		TLSConfig:    config,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.calls.Add(1)
			(*h.handler.Load())(w, r)
		}),
	}
	// A connection that stays open would hide the certificates that follow.
	server.SetKeepAlivesEnabled(false)
	ended := background(func() { _ = server.ServeTLS(h.listener, "", "") })
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
}

// nextCheck waits until the last result of Ready is no longer reused.
func nextCheck() { time.Sleep(1100 * time.Millisecond) }

func TestReadyCallsTheWebhook(t *testing.T) {
	t.Parallel()
	ca, other := newTestCA(t, time.Hour), newTestCA(t, time.Hour)
	client := fake.NewClientset(webhookConfiguration(nil, nil))
	hook := listen(t)
	options := patching(client)
	options.SelfCheck = hook.selfCheck()
	manager := runManager(t, newScript(always(ca.material(t, time.Hour))), options)
	hook.serve(t, manager)
	eventually(t, "the webhook is ready", func() bool { return manager.Ready(t.Context()) == nil })

	for what, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"another answer":  {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "denied") }, `the answer is "denied"`},
		"no answer":       {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		"an error":        {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }, "418"},
		"a redirect":      {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "302"},
		"an endless body": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 8<<20)) }, "the answer is"},
	} {
		nextCheck()
		hook.answer(test.handler)
		if err := manager.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
	}

	nextCheck()
	hook.answer(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Content-Type"), " ", r.TLS.ServerName, " ", string(body))
		if want := "POST /inject application/json outrigger-injector.mesh.svc review"; got != want {
			t.Errorf("the webhook was called with %q, want %q", got, want)
		}
		fmt.Fprint(w, "allowed")
	})
	if err := manager.Ready(t.Context()); err != nil {
		t.Error(err)
	}

	// A certificate that the API server does not trust is not ready, even if we trust it.
	foreign := fake.NewClientset(webhookConfiguration(ca.pem, other.pem))
	blockPatches(foreign)
	options = patching(foreign)
	options.SelfCheck = hook.selfCheck()
	untrusted := runManager(t, newScript(always(ca.material(t, time.Hour))), options)
	eventually(t, "the webhook is not ready", func() bool {
		err := untrusted.Ready(t.Context())
		return err != nil && strings.Contains(err.Error(), "unknown authority") && strings.Contains(err.Error(), configName)
	})
}

func TestReadyIsCheap(t *testing.T) {
	t.Parallel()
	hook := listen(t)
	manager := runManager(t, newScript(always(newTestCA(t, time.Hour).material(t, time.Hour))), servingcert.Options{SelfCheck: hook.selfCheck()})
	hook.serve(t, manager)
	eventually(t, "the webhook is ready", func() bool { return manager.Ready(t.Context()) == nil })

	hook.calls.Store(0)
	begin := time.Now()
	var probing sync.WaitGroup
	for range 8 {
		probing.Go(func() {
			for range 200 {
				if err := manager.Ready(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	probing.Wait()
	if calls, most := hook.calls.Load(), int64(time.Since(begin)/time.Second)+1; calls > most {
		t.Errorf("1600 probes made %d calls, want at most %d", calls, most)
	}
}

func TestReadyRespectsItsContext(t *testing.T) {
	t.Parallel()
	hook := listen(t)
	manager := runManager(t, newScript(always(newTestCA(t, time.Hour).material(t, time.Hour))), servingcert.Options{SelfCheck: hook.selfCheck()})
	hook.serve(t, manager)
	eventually(t, "the webhook is ready", func() bool { return manager.Ready(t.Context()) == nil })

	nextCheck()
	hook.answer(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := manager.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Ready: %v, want that its context has ended", err)
	}
	// A canceled call leaves no result behind.
	hook.answer(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "allowed") })
	if err := manager.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReadyGivesUp tests a webhook that never answers.
func TestReadyGivesUp(t *testing.T) {
	t.Parallel()
	hook := listen(t)
	manager := runManager(t, newScript(always(newTestCA(t, time.Hour).material(t, time.Hour))), servingcert.Options{SelfCheck: hook.selfCheck()})
	hook.serve(t, manager)
	eventually(t, "the webhook is ready", func() bool { return manager.Ready(t.Context()) == nil })

	nextCheck()
	hook.answer(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	err := manager.Ready(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("after %s Ready returns %v, want that the check took longer than 5s", time.Since(began), err)
	}
}

func TestReadyWithoutAddress(t *testing.T) {
	t.Parallel()
	manager := runManager(t, newScript(always(newTestCA(t, time.Hour).material(t, time.Hour))), servingcert.Options{})
	if err := manager.Ready(t.Context()); err == nil {
		t.Error("ready without a call to the webhook")
	}
}
