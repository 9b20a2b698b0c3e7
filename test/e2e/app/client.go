package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// pinned accepts only the certificate with the SHA-256, in hex, whatever its name and issuer are.
func pinned(sum string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the whole certificate.
		VerifyConnection: func(state tls.ConnectionState) error {
			if got := sha256.Sum256(state.PeerCertificates[0].Raw); hex.EncodeToString(got[:]) != sum {
				return fmt.Errorf("the server presents another certificate: %x", got)
			}
			return nil
		},
	}
}

// get sends one request. A truncated answer is an error.
func get(ctx context.Context, url string) line {
	// A lost DNS query is repeated after five seconds.
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return line{Error: err.Error()}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return line{Error: err.Error()}
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return line{Status: response.StatusCode, Error: fmt.Sprintf("reading the answer: %v", err)}
	}
	return line{Status: response.StatusCode}
}

// load sends requests, and logs each failure, and once a second the number of requests.
func load(stopped context.Context, url string, every time.Duration, workers int) {
	var mu sync.Mutex
	var all line
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for stopped.Err() == nil {
				// Stopping must not make a request fail.
				result := get(context.WithoutCancel(stopped), url)
				mu.Lock()
				all.Requests++
				if result.Status != http.StatusOK || result.Error != "" {
					all.Failures++
					say(result)
				}
				mu.Unlock()
				select {
				case <-stopped.Done():
				case <-time.After(every):
				}
			}
		})
	}
	report := func() {
		mu.Lock()
		defer mu.Unlock()
		say(all)
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for stopped.Err() == nil {
		select {
		case <-stopped.Done():
		case <-second.C:
			report()
		}
	}
	working.Wait()
	report()
}
