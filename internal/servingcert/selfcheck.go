package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	// checkLife is how long the result of a self check is reused.
	checkLife = time.Second
	// checkTimeout is the timeout of one self check.
	checkTimeout = 5 * time.Second
	// longestAnswer limits how many bytes of an answer are read.
	longestAnswer = 1 << 20
)

// SelfCheck configures how Ready calls the webhook.
type SelfCheck struct {
	// Address is the address that the webhook listens on, as "host:port".
	Address string
	// Review is the body that is posted to /inject.
	Review []byte
	// Accept returns an error if the body of the answer is wrong.
	Accept func(answer []byte) error
}

// selfChecker remembers the result of the last self check.
type selfChecker struct {
	// turn is held by the only caller that may use the result.
	turn   chan struct{}
	result error
	at     time.Time
}

// Ready returns nil if the API server could call the webhook now. It opens a TLS connection
// to SelfCheck.Address, verifies the server name, trusts exactly the CAs that the webhook
// configuration trusts (or its own CAs if that is unknown or not maintained) and posts the
// review to /inject. The result is reused for a second for all callers, so a readiness
// probe may call at any rate.
func (m *Manager) Ready(ctx context.Context) error {
	select {
	case m.checker.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the webhook's self check: %w", ctx.Err())
	}
	defer func() { <-m.checker.turn }()
	if time.Since(m.checker.at) < checkLife {
		return m.checker.result
	}
	err := m.callWebhook(ctx)
	if ctx.Err() != nil {
		// A canceled call says nothing about the webhook.
		return err
	}
	m.checker.result, m.checker.at = err, time.Now()
	return err
}

func (m *Manager) callWebhook(ctx context.Context) error {
	if m.options.SelfCheck.Address == "" {
		return errors.New("the address for the webhook's self check is not set")
	}
	roots, source := m.publisher.trusted.Load(), "MutatingWebhookConfiguration "+m.options.WebhookConfiguration
	if roots == nil {
		roots, source = m.publisher.wanted.Load(), "own CA bundle"
	}
	if roots == nil {
		return m.notYet()
	}
	answer, err := m.post(ctx, *roots)
	if err == nil {
		err = m.options.SelfCheck.Accept(answer)
	}
	if err != nil {
		return fmt.Errorf("the webhook's self check failed with the trust of %s: %w", source, err)
	}
	return nil
}

func (m *Manager) post(ctx context.Context, roots pki.Bundle) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	check := m.options.SelfCheck
	client := http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, check.Address)
			},
			TLSClientConfig: &tls.Config{
				MinVersion: tls.VersionTLS12,
				RootCAs:    roots.Pool(),
				ServerName: m.options.ServerName,
			},
			// Each check must do a handshake.
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+m.options.ServerName+"/inject", bytes.NewReader(check.Review))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer has status %s", response.Status)
	}
	return answer, nil
}
