package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
)

const (
	// debugPort is where a controller in a cluster has its debug pages.
	debugPort = 9092
	// maxAnswer is the longest page that is read, in bytes.
	maxAnswer = 256 << 20
)

// errNoDebugPages is the way out where nobody answers.
var errNoDebugPages = errors.New("are the debug pages on? They are while spec.observability.enableDebugServer of the MeshConfig is true")

// check refuses flags that nobody could be asked with.
func (f *proxyFlags) check() error {
	if f.address != "" {
		if _, port, err := net.SplitHostPort(f.address); err != nil || port == "" || strings.Contains(f.address, "/") {
			return usage.Errorf("--debug-address %q: give HOST:PORT, for example 127.0.0.1:%d", f.address, debugPort)
		}
	}
	if f.timeout <= 0 {
		return usage.Errorf("--timeout %s: give a time such as 30s", f.timeout)
	}
	return nil
}

// ask gets a page of every controller and passes it on with the controller's name, or nil
// where the controller has nothing of that name. The error is about controllers that
// have not answered.
func (f *proxyFlags) ask(ctx context.Context, path string, take func(controller string, answer []byte) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("no answer in %s", f.timeout))
	defer cancel()
	if f.address != "" {
		answer, err := getPage(ctx, f.address, path)
		if err != nil {
			return fmt.Errorf("%w; %w", err, errNoDebugPages)
		}
		return take(f.address, answer)
	}
	config, err := f.kube.config()
	if err != nil {
		return err
	}
	pods, err := controllers(ctx, config, f.mesh.namespace)
	if err != nil {
		return err
	}
	var failed []error
	for _, pod := range pods {
		answer, err := forward(ctx, config, pod, debugPort, path)
		if err == nil {
			err = take(pod.Name, answer)
		} else {
			err = fmt.Errorf("controller %s/%s: %w; %w", pod.Namespace, pod.Name, err, errNoDebugPages)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// controllers returns the pods of the controller that run.
func controllers(ctx context.Context, config *rest.Config, namespace string) ([]corev1.Pod, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", config.Host, err)
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=outrigger-controller", FieldSelector: "status.phase=Running"})
	if err != nil {
		return nil, fmt.Errorf("listing the controller's pods in %s: %w", namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod of the controller runs in namespace %s; name its namespace with --mesh-namespace, or its address with --debug-address", namespace)
	}
	return list.Items, nil
}

// forward gets a page of a pod by way of the API server and the pod's kubelet.
func forward(ctx context.Context, config *rest.Config, pod corev1.Pod, port int, path string) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	target := host.JoinPath("api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward")
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
	ready := make(chan struct{})
	// What goes wrong on a connection is only written.
	var said lockedBuffer
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, ctx.Done(), ready, io.Discard, &said)
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
	answer, err := getPage(ctx, fmt.Sprintf("127.0.0.1:%d", ports[0].Local), path)
	if err != nil {
		if text := strings.TrimSpace(said.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err
	}
	return answer, nil
}

// getPage returns nil for a page that says that there is nothing of that name.
func getPage(ctx context.Context, address, path string) ([]byte, error) {
	target, err := url.Parse("http://" + address + path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
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
		return nil, fmt.Errorf("GET %s: %s: %s", target.Path, response.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// lockedBuffer may be written to while it is read.
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
