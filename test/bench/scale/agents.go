package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
)

// What an agent without a certificate does when an attempt fails: it waits for a second, then
// twice as long each time, at most 15 seconds, and each time for a random part of the upper
// half. Package internal/agent/kit has the same timings.
const (
	attemptTimeout = 35 * time.Second
	firstRetry     = time.Second
	lastRetry      = 15 * time.Second
)

// certify lets the agents of the pods obtain certificates, of which the first begins now and
// the last at the end of within, and waits until all have one. It returns how long each has
// waited and the failed attempts by their errors.
func (f *fleet) certify(pods []Pod, within, limit time.Duration) ([]time.Duration, map[string]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit+within)
	defer cancel()
	settings := f.identitySettings()
	if !f.Istio {
		settings.CurvePreferences = []tls.CurveID{tls.CurveP256}
	}
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		took    []time.Duration
		failed  = make(map[string]int64)
	)
	began := time.Now()
	for i, pod := range pods {
		running.Go(func() {
			due := began.Add(within * time.Duration(i) / time.Duration(len(pods)))
			time.Sleep(time.Until(due))
			from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 128+byte(i>>16), byte(i>>8), byte(i))}}
			dial := func(ctx context.Context, address string) (net.Conn, error) {
				return from.DialContext(ctx, "tcp", address)
			}
			for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
				attempt, done := context.WithTimeout(ctx, attemptTimeout)
				_, err := f.signFor(attempt, &pod, settings, dial)
				done()
				mu.Lock()
				if err == nil {
					took = append(took, time.Since(due))
				} else {
					failed[kindOf(err)]++
				}
				mu.Unlock()
				if err == nil {
					return
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause/2 + rand.N(pause/2)):
				}
			}
		})
	}
	running.Wait()
	slices.Sort(took)
	if len(took) < len(pods) {
		return took, failed, fmt.Errorf("only %d of %d pods have a certificate; failed attempts: %s", len(took), len(pods), counts(failed))
	}
	return took, failed, nil
}

// identitySettings are those of connections to the signing service.
func (f *fleet) identitySettings() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.Roots)
	return &tls.Config{RootCAs: roots, ServerName: f.ServerName, MinVersion: tls.VersionTLS12}
}

// kindOf returns what the error of an attempt has in common with those of other pods: its
// beginning, without addresses.
func kindOf(err error) string {
	s := status.Convert(err)
	message, _, _ := strings.Cut(s.Message(), "tcp ")
	return fmt.Sprintf("%s: %s", s.Code(), message[:min(len(message), 80)])
}
