package rollout

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// repository is this pod's connection to the driver's repository of files.
type repository struct {
	// serverName is the name that its certificate must have.
	serverName string
	identity   *identity.Source
	transport  *http.Transport
}

// newRepository returns the repository at the URL and a client for it.
func newRepository(url, serverName string, identity *identity.Source, wait time.Duration) (*repository, *mirror.Client) {
	r := &repository{serverName: serverName, identity: identity}
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
	config, err := r.identity.ClientTLS(r.serverName)
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
