package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/controller"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// TestUnfinishedHealthChecks sends requests with half a body to the port for health and metrics,
// as unauthenticated clients could.
func TestUnfinishedHealthChecks(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, serve := range map[string]func(ctx context.Context, address string) error{
		"controller": func(ctx context.Context, address string) error {
			return controller.Run(ctx, controller.Options{
				Folder:       &controller.Folder{Files: []string{t.TempDir()}, CADir: filepath.Join(t.TempDir(), "ca")},
				HealthListen: address, IdentityListen: "127.0.0.1:0", DebugListen: "127.0.0.1:0", BindAddress: ownAddress(),
				OnConfig: func(*source.Config) {}, Log: log,
			})
		},
		"injector": func(ctx context.Context, address string) error {
			// Without templates it serves only health and metrics.
			return injector.Run(ctx, injector.Options{HealthListen: address, Log: log})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := freeAddress(t)
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- serve(ctx, address) }()
			defer func() {
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}()
			var conn net.Conn
			for begin := time.Now(); conn == nil; {
				var err error
				if conn, err = net.Dial("tcp", address); err != nil && time.Since(begin) > 10*time.Second {
					t.Fatal(err)
				}
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
			fmt.Fprint(conn, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbeginning")
			content, err := io.ReadAll(conn)
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Errorf("the request is open after 15 seconds; the answer was %q", content)
			}
		})
	}
}
