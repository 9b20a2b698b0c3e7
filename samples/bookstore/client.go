package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// buyer repeatedly buys a book and writes a line for each request.
func buyer(ctx context.Context, s *settings) error {
	return shop(ctx, s, "/buy-a-book", http.Header{"Client-App": {"bookbuyer"}})
}

// thief claims to be the buyer.
func thief(ctx context.Context, s *settings) error {
	return shop(ctx, s, "/buy-a-book", http.Header{"Client-App": {"bookbuyer"}})
}

// purchase is a line of a client's output.
type purchase struct {
	Path   string `json:"path"`
	Status int    `json:"status,omitempty"`
	// Store is the version that answered.
	Store string `json:"store,omitempty"`
	Error string `json:"error,omitempty"`
	// Milliseconds is the duration of the request.
	Milliseconds float64 `json:"milliseconds"`
}

func shop(ctx context.Context, s *settings, path string, header http.Header) error {
	client := &http.Client{Timeout: 10 * time.Second}
	lines := json.NewEncoder(s.out)
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		if err := lines.Encode(try(ctx, client, cmp.Or(s.upstream, "http://bookstore.bookstore"), path, header)); err != nil {
			return fmt.Errorf("writing a purchase: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func try(ctx context.Context, client *http.Client, store, path string, header http.Header) purchase {
	began := time.Now()
	done := purchase{Path: path}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, store+path, nil)
	if err != nil {
		done.Error = err.Error()
		return done
	}
	request.Header = header
	response, err := client.Do(request)
	if err != nil {
		done.Error = err.Error()
	} else {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
		_ = response.Body.Close()
		done.Status, done.Store = response.StatusCode, response.Header.Get("Bookstore-Version")
	}
	done.Milliseconds = float64(time.Since(began).Microseconds()) / 1000
	return done
}
