package agent

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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

// unhurried eventually gives up.
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
            tls_certificate_sds_secret_configs: [{name: identity, sds_config: &agent {api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: agent}}]}, resource_api_version: V3}}]
            validation_context_sds_secret_config: {name: bundle, sds_config: *agent}
      filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
  clusters:
  - name: agent
    load_assignment: {cluster_name: agent, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "${SOCKET}"}}}}]}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// TestEnvoy runs a real Envoy. It must present the current certificate and verify by the
// current bundle, without a restart.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy(t)
	p := newPod(t)
	p.env["SOCKET"] = p.path("identity/sds.sock")
	p.spec = agentspec.Spec{
		Command:  []string{envoy, "--config-path", p.path("run/envoy.yaml"), "--disable-hot-restart", "--log-level", "warning", "--concurrency", "1"},
		Files:    []agentspec.File{{Path: p.path("run/envoy.yaml"), Content: envoyConfig}},
		Secrets:  &agentspec.Secrets{Socket: p.path("identity/sds.sock")},
		ReadyURL: "http://${POD_IP}:15000/ready",
		Drain:    &agentspec.Drain{URL: "http://${POD_IP}:15000/drain_listeners?graceful", Seconds: 1},
	}
	p.serve()
	p.start()
	p.untilReady()

	// shown returns the certificate that Envoy presents to a client of the authority, after
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
	p.service.set(func() { p.service.bundle = bundleOf(p.ca, next) })
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
	// A restarted Envoy gets its secrets again.
	_, page := p.ask("GET", "/metrics")
	if strings.Contains(page, "PRIVATE KEY") {
		t.Error("the metrics show the key")
	}
	if err := unix.Kill(p.childPID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.until("started again", func() bool { return p.metric("outrigger_agent_proxy_restarts_total") == "1" })
	p.until("showing a certificate after a restart", func() bool {
		cert, err := shown(next)
		return err == nil && cert.CheckSignatureFrom(next.cert) == nil
	})
	if n := inotifyInstances(t, p.childPID()); n > 0 {
		t.Errorf("Envoy has %d inotify instances", n)
	}
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}

// childPID returns the ID of the process that the agent last started, according to its log.
func (p *pod) childPID() int {
	p.t.Helper()
	starts := regexp.MustCompile(`"msg":"proxy started","pid":(\d+)`).FindAllStringSubmatch(p.log.String(), -1)
	if len(starts) == 0 {
		p.t.Fatal("no proxy was started")
	}
	pid, err := strconv.Atoi(starts[len(starts)-1][1])
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

// inotifyInstances returns the number of inotify instances that a process has open.
func inotifyInstances(t *testing.T, pid int) int {
	t.Helper()
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(open) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	n := 0
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}
