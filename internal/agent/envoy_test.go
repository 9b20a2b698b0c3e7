package agent

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

func findEnvoy(t *testing.T) string {
	t.Helper()
	if program := os.Getenv("ENVOY"); program != "" {
		return program
	}
	if program, err := exec.LookPath("envoy"); err == nil {
		return program
	}
	cache := os.Getenv("OUTRIGGER_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("SKIPPED: there is no Envoy: %v", err)
		}
		cache = filepath.Join(user, "outrigger")
	}
	found, err := filepath.Glob(filepath.Join(cache, "envoy-*", "envoy"))
	if err != nil || len(found) == 0 {
		t.Skip("SKIPPED: there is no Envoy here; run 'make envoy'")
	}
	return found[len(found)-1]
}

// unhurried gives up in the end.
var unhurried = net.Dialer{Timeout: deadline}

const envoyConfig = `
node: {id: "${POD_UID}", cluster: "${POD_NAME}"}
admin: {address: {socket_address: {address: ${POD_IP}, port_value: 15000}}}
static_resources:
  listeners:
  - address: {socket_address: {address: ${POD_IP}, port_value: 15003}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_params: {tls_minimum_protocol_version: TLSv1_3}
            tls_certificate_sds_secret_configs: [{name: identity, sds_config: {path_config_source: {path: ${DIR}/identity.sds.yaml}}}]
            validation_context_sds_secret_config: {name: bundle, sds_config: {path_config_source: {path: ${DIR}/bundle.sds.yaml}}}
      filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
`

// TestEnvoy runs a real Envoy. It must show the certificate of the moment, and verify by
// the bundle of the moment, without a restart.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy(t)
	p := newPod(t)
	p.env["DIR"] = p.path("run")
	p.spec = agentspec.Spec{
		Command: []string{envoy, "--config-path", p.path("run/envoy.yaml"), "--disable-hot-restart", "--log-level", "warning", "--concurrency", "1"},
		Files: []agentspec.File{
			{Path: p.path("run/envoy.yaml"), Content: envoyConfig},
			{Path: p.path("run/identity.sds.yaml"), Content: `resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: identity
  tls_certificate:
    certificate_chain: {filename: ` + p.path("identity/chain.pem") + `}
    private_key: {filename: ` + p.path("identity/key.pem") + `}
    watched_directory: {path: ` + p.path("identity") + `}
`},
			{Path: p.path("run/bundle.sds.yaml"), Content: `resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: bundle
  validation_context:
    trusted_ca: {filename: ` + p.path("identity/bundle.pem") + `}
    watched_directory: {path: ` + p.path("identity") + `}
`},
		},
		ReadyURL: "http://${POD_IP}:15000/ready",
		Drain:    &agentspec.Drain{URL: "http://${POD_IP}:15000/drain_listeners?graceful", Seconds: 1},
	}
	p.serve()
	p.start()
	p.untilReady()

	// shown returns the certificate that Envoy shows to a client of the authority, once
	// it has answered a request.
	shown := func(a *authority) (*x509.Certificate, error) {
		conn, err := tls.DialWithDialer(&unhurried, "tcp", p.ip+":15003", &tls.Config{
			InsecureSkipVerify: true, Certificates: []tls.Certificate{a.server(t, "client")},
		})
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")); err != nil {
			return nil, err
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return nil, err
		}
		return conn.ConnectionState().PeerCertificates[0], nil
	}
	before, err := shown(p.ca)
	if err != nil || !before.Equal(p.mustIdentity().leaf) {
		t.Fatalf("Envoy does not show the pod's certificate: %v", err)
	}
	next := newAuthority(t, "next")
	if _, err := shown(next); err == nil {
		t.Error("a client of a root that is not trusted is answered")
	}
	p.write("ca.crt", string(bundleOf(p.ca, next)))
	p.until("trusting the next root", func() bool { _, err := shown(next); return err == nil })

	p.service.set(func() { p.service.signer, p.service.bundle = next, bundleOf(next) })
	p.service.stop()
	p.service.start(t, next)
	p.write("ca.crt", string(bundleOf(next)))
	p.until("showing a certificate of the next root", func() bool {
		cert, err := shown(next)
		return err == nil && cert.CheckSignatureFrom(next.cert) == nil
	})
	p.until("refusing the old root", func() bool { _, err := shown(p.ca); return err != nil })
	if got := p.metric("outrigger_agent_proxy_restarts_total"); got != "0" {
		t.Errorf("Envoy was started %s times more", got)
	}
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}
