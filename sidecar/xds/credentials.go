package xds

import (
	"context"
	"crypto/tls"
	"net"
	"slices"

	"google.golang.org/grpc/credentials"
)

type tlsState = tls.ConnectionState

// serverCredentials are gRPC's for TLS, which also tell of the connection below.
type serverCredentials struct {
	credentials.TransportCredentials
}

// authInfo is what is known of a connection.
type authInfo struct {
	credentials.TLSInfo
	// raw is the connection below TLS, to be closed when nothing else helps.
	raw net.Conn
}

const http2 = "h2"

func newCredentials(config *tls.Config) serverCredentials {
	config.NextProtos = []string{http2}
	if choose := config.GetConfigForClient; choose != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if err != nil || chosen == nil || slices.Contains(chosen.NextProtos, http2) {
				return chosen, err
			}
			chosen = chosen.Clone()
			chosen.NextProtos = []string{http2}
			return chosen, nil
		}
	}
	return serverCredentials{credentials.NewTLS(config)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	state, _ := info.(credentials.TLSInfo)
	return conn, authInfo{TLSInfo: state, raw: raw}, nil
}

// Clone implements credentials.TransportCredentials.
func (c serverCredentials) Clone() credentials.TransportCredentials {
	return serverCredentials{c.TransportCredentials.Clone()}
}

var _ interface {
	ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error)
	ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error)
} = serverCredentials{}
