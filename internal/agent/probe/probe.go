package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// maxProbeBody limits how much of an app's answer is read, as in the kubelet. Nothing of it
// is passed on, because the agent's port is open to the network.
const maxProbeBody = 10 << 10

// prober probes the app as the kubelet would have.
type prober struct {
	podIP string
	// transport is for most HTTP probes, and http2 for those by HTTP/2 without TLS.
	transport, http2 *http.Transport
}

func newProber(podIP string) *prober {
	p := &prober{podIP: podIP, transport: &http.Transport{
		TLSClientConfig:    unverified(),
		ForceAttemptHTTP2:  true,
		DisableKeepAlives:  true,
		DisableCompression: true,
		DialContext:        dialApp,
	}}
	p.http2 = p.transport.Clone()
	p.http2.Protocols = new(http.Protocols)
	p.http2.Protocols.SetUnencryptedHTTP2(true)
	return p
}

// unverified does not verify the app's certificate, as the kubelet does not either.
func unverified() *tls.Config { return &tls.Config{InsecureSkipVerify: true} } //nolint:gosec

// answer is the result of a probe: an HTTP status and a reason without any text of the app's.
type answer struct {
	status int
	reason string
	// detail is for the agent's own log.
	detail error
}

func (a answer) ok() bool { return a.status >= 200 && a.status < 400 }

// probe probes the app. from is the header of the kubelet's request to the agent.
func (p *prober) probe(ctx context.Context, probe agentspec.Probe, header http.Header) answer {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	code, err := http.StatusOK, error(nil)
	switch probe.Kind {
	case agentspec.HTTP:
		code, err = p.probeHTTP(ctx, probe, header)
	case agentspec.TCP:
		err = p.probeTCP(ctx, probe)
	case agentspec.GRPC:
		err = p.probeGRPC(ctx, probe, header)
	}
	switch {
	case ctx.Err() != nil && err != nil:
		return answer{http.StatusGatewayTimeout, fmt.Sprintf("the app did not answer within %d s", probe.TimeoutSeconds), err}
	case err != nil:
		return answer{http.StatusServiceUnavailable, probeFailure(err), err}
	}
	return answer{status: code, reason: fmt.Sprintf("the app answered: %d", code)}
}

// fixed is an error whose text does not depend on what the app sent, but for a code.
type fixed string

func (f fixed) Error() string { return string(f) }

const errRedirects fixed = "the app redirects more than 10 times"

// probeFailure returns why a probe failed, in words that may leave the pod: errors of the HTTP
// client contain the probe's URL, those that the app redirects to, and the beginning of
// what is no HTTP.
func probeFailure(err error) string {
	if known, ok := errors.AsType[fixed](err); ok {
		return known.Error()
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the app refuses the connection"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the app closed the connection"
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return "the app cannot be reached"
	}
	return "the app did not answer the probe's request properly"
}

func (p *prober) host(probe agentspec.Probe) string {
	if probe.Host != "" {
		return probe.Host
	}
	return p.podIP
}

func (p *prober) address(probe agentspec.Probe) string {
	return net.JoinHostPort(p.host(probe), strconv.Itoa(int(probe.Port)))
}

// probeHTTP returns the status of the app's answer, following redirects within the host.
func (p *prober) probeHTTP(ctx context.Context, probe agentspec.Probe, header http.Header) (int, error) {
	response, err := p.get(ctx, probe, header)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxProbeBody)); err != nil {
		return 0, err
	}
	if response.StatusCode < 200 {
		// For the kubelet this is a failure, and it cannot be passed on as a status.
		return 0, fixed(fmt.Sprintf("the app answered: %d", response.StatusCode))
	}
	return response.StatusCode, nil
}

// get sends the request of a probe or hook.
func (p *prober) get(ctx context.Context, probe agentspec.Probe, header http.Header) (*http.Response, error) {
	target, err := url.Parse(probe.URL)
	if err != nil {
		// Like the kubelet, use an invalid URL as a path.
		target = &url.URL{Path: probe.URL}
	}
	target.Scheme, target.Host = "http", p.address(probe)
	if probe.Scheme == "HTTPS" {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range probe.Headers {
		request.Header.Add(h.Name, h.Value)
	}
	// Apps may recognize probes by the kubelet's headers. An empty header in the probe's
	// definition removes one.
	for _, name := range []string{"User-Agent", "Accept"} {
		if _, ok := request.Header[name]; !ok {
			request.Header[name] = header[name]
		}
		if name == "Accept" && request.Header.Get(name) == "" {
			request.Header.Del(name)
		}
	}
	if _, ok := request.Header["User-Agent"]; !ok || len(request.Header["User-Agent"]) == 0 {
		request.Header["User-Agent"] = []string{""}
	}
	request.Host = request.Header.Get("Host")
	transport := p.transport
	if probe.Protocol == agentspec.HTTP2 {
		transport = p.http2
	}
	client := &http.Client{Transport: transport, CheckRedirect: sameHost}
	return client.Do(request)
}

// sameHost follows redirects as the kubelet does: a redirect to another host is not
// followed and counts as success.
func sameHost(next *http.Request, before []*http.Request) error {
	if next.URL.Hostname() != before[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(before) >= 10 {
		return errRedirects
	}
	return nil
}

func (p *prober) probeTCP(ctx context.Context, probe agentspec.Probe) error {
	conn, err := dialApp(ctx, "tcp", p.address(probe))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (p *prober) probeGRPC(ctx context.Context, probe agentspec.Probe, header http.Header) error {
	security := insecure.NewCredentials()
	if probe.Mode == agentspec.TLS {
		security = credentials.NewTLS(unverified())
	}
	conn, err := grpc.NewClient("passthrough:///"+p.address(probe),
		grpc.WithTransportCredentials(security),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dialApp(ctx, "tcp", address) }),
		grpc.WithUserAgent(header.Get("User-Agent")),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxProbeBody)))
	if err != nil {
		return err
	}
	defer conn.Close()
	health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: probe.Service})
	if err != nil {
		// The message may contain the app's text.
		return fixed("the health service answered: " + kit.CodeName(status.Code(err)))
	}
	if health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fixed("the app answered: " + health.GetStatus().String())
	}
	return nil
}

// dialApp connects to the app, bypassing the redirection.
func dialApp(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, address string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			// Without this, each probe's socket stays in TIME_WAIT for a minute.
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
			if to, err := netip.ParseAddrPort(address); err == nil && isOwn(to.Addr()) {
				bindSource(int(fd), to.Addr())
			}
		})
	}}
	return dialer.DialContext(ctx, network, address)
}

// bindSource binds the socket to the source address that is not redirected. Errors are
// ignored: without that address, as without IPv6 rules, there is no redirection.
func bindSource(fd int, address netip.Addr) {
	// Let connect choose the port, so that the port need not be free for all destinations.
	_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if address.Unmap().Is4() {
		_ = unix.Bind(fd, &unix.SockaddrInet4{Addr: socket.AppSource4.As4()})
	} else {
		_ = unix.Bind(fd, &unix.SockaddrInet6{Addr: socket.AppSource6.As16()})
	}
}

// isOwn reports whether an address is one of the pod's non-loopback addresses.
func isOwn(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsLoopback() || addr.IsUnspecified() {
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range own {
		if text, _, ok := strings.Cut(a.String(), "/"); ok {
			if is, err := netip.ParseAddr(text); err == nil && is.Unmap() == addr {
				return true
			}
		}
	}
	return false
}
