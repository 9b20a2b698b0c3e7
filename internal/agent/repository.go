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

// repository is the driver's repository of files, as this pod asks it.
type repository struct {
	// serverName is whom its certificate must be made out to.
	serverName string
	store      *store
	transport  *http.Transport
}

// newRepository returns the repository and the client that asks it at the URL.
func newRepository(url, serverName string, store *store, wait time.Duration) (*repository, *mirror.Client) {
	r := &repository{serverName: serverName, store: store}
	// It is one connection, of HTTP/1.1, whose buffers are small.
	r.transport = &http.Transport{
		DialTLSContext:     r.dial,
		MaxConnsPerHost:    1,
		DisableCompression: true,
	}
	return r, &mirror.Client{URL: url, Wait: wait, HTTP: &http.Client{
		Transport: r.transport,
		// Where the files come from is for the driver to say, not for an answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// dial connects, with the identity files as they are now.
func (r *repository) dial(ctx context.Context, network, address string) (net.Conn, error) {
	config, err := r.config()
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{
		Timeout: 10 * time.Second,
		// A request waits for long, and the other side may be gone without a word.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}}
	return dialer.DialContext(ctx, network, address)
}

// config returns how TLS is spoken: the server is verified by the trust bundle and by the
// controller's name, since the mesh's roots sign for every pod, and is shown the pod's
// certificate.
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
		return nil, errors.New("the key does not fit the certificate")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots.Pool(), ServerName: r.serverName,
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"},
	}, nil
}

// isStranger reports whether an error says that the repository is not the one that the
// identity files know, so that newer files may help.
func isStranger(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.As(err, &unverified)
}
