package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/outrigger-mesh/outrigger/internal/debug"
)

// maxAnswer is the maximum size of a page, in bytes.
const maxAnswer = 256 << 20

// forward gets a page of a pod through the API server and the pod's kubelet, with the bearer
// token unless it is empty.
func forward(ctx context.Context, config *rest.Config, pod corev1.Pod, port int, path, token string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer, err := newDialer(config, pod)
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	// The forwarder only writes errors of a connection, and does not return them.
	var output lockedBuffer
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, ctx.Done(), ready, io.Discard, &output)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return nil, fmt.Errorf("forwarding a port to the pod: %w", err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return nil, err
	}
	answer, err := getPage(ctx, fmt.Sprintf("127.0.0.1:%d", ports[0].Local), path, token)
	if err != nil {
		if text := strings.TrimSpace(output.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err
	}
	return answer, nil
}

// newDialer returns a dialer that connects to a pod by WebSocket, which gateways in front of
// an API server support, or else by SPDY. An API server requires the right to get
// pods/portforward for WebSocket, and to create it for SPDY.
func newDialer(config *rest.Config, pod corev1.Pod) (httpstream.Dialer, error) {
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	target := host.JoinPath("api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	older := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	newer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(newer, older, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// getPage returns a page, or nil if the answer has debug.NothingHeader.
func getPage(ctx context.Context, address, path, token string) ([]byte, error) {
	target, err := url.Parse("http://" + address + path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusNotFound && response.Header.Get(debug.NothingHeader) != "":
		return nil, nil
	case response.StatusCode != http.StatusOK:
		return nil, statusError{response.StatusCode, fmt.Sprintf("GET %s: %s: %s", target.Path, response.Status, strings.TrimSpace(string(body)))}
	}
	return body, nil
}

// statusError is the error of a page that is answered with another status than 200.
type statusError struct {
	code int
	text string
}

func (e statusError) Error() string { return e.text }

// lockedBuffer is a buffer that is safe for concurrent use.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
