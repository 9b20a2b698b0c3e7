package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// repository is this pod's connection to the driver's repository of files.
type repository struct {
	// serverName is the name that its certificate must have.
	serverName string
	store      *store
	transport  *http.Transport
}

// newRepository returns the repository at the URL and a client for it.
func newRepository(url, serverName string, store *store, wait time.Duration) (*repository, *mirror.Client) {
	r := &repository{serverName: serverName, store: store}
	// One HTTP/1.1 connection needs the least memory.
	r.transport = &http.Transport{
		DialTLSContext:     r.dial,
		MaxConnsPerHost:    1,
		DisableCompression: true,
	}
	return r, &mirror.Client{URL: url, Wait: wait, HTTP: &http.Client{
		Transport: r.transport,
		// Only the driver's Spec decides where the files come from.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// dial connects with the current identity files.
func (r *repository) dial(ctx context.Context, network, address string) (net.Conn, error) {
	config, err := r.config()
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{
		Timeout: 10 * time.Second,
		// Requests wait long, and the server may disappear without closing the connection.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}}
	return dialer.DialContext(ctx, network, address)
}

// config returns the TLS configuration. It presents the pod's certificate and verifies the
// server by the trust bundle and the controller's name: the name matters because the
// mesh's roots sign every pod's certificate.
func (r *repository) config() (*tls.Config, error) {
	m, err := r.store.read()
	if err != nil {
		return nil, fmt.Errorf("reading the identity files: %w", err)
	}
	roots, err := parseRoots(m.bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", bundleFile, err)
	}
	pair, err := tls.X509KeyPair(m.chain, m.key)
	if err != nil {
		return nil, errors.New("the key does not match the certificate")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots.Pool(), ServerName: r.serverName,
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"},
	}, nil
}

// isUnverified reports whether an error means that the identity files do not verify the
// repository, so newer files may help.
func isUnverified(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.As(err, &unverified)
}
