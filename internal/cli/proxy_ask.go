package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
)

const (
	// debugPort is the port of a controller's debug pages, while they are on.
	debugPort = 9092
	// proxyPort is the port at which a controller in a cluster serves the page of proxies to
	// authorized users.
	proxyPort = 9093
	// viewerLife is the life of a token in seconds, the minimum of API servers.
	viewerLife = 600
)

// errNoDebugPages is the advice if no controller answers at --debug-address.
var errNoDebugPages = errors.New("the debug pages may be disabled; set spec.observability.enableDebugServer to true in the MeshConfig")

// check returns an error for flags with which no controller can be queried.
func (f *proxyFlags) check() error {
	if f.address != "" {
		if err := f.checkAddress(); err != nil {
			return err
		}
	}
	if f.timeout <= 0 {
		return usage.Errorf("--timeout %s: give a time such as 30s", f.timeout)
	}
	return nil
}

func (f *proxyFlags) checkAddress() error {
	if _, port, err := net.SplitHostPort(f.address); err != nil || port == "" || strings.Contains(f.address, "/") {
		return usage.Errorf("--debug-address %q: give HOST:PORT, for example 127.0.0.1:%d", f.address, debugPort)
	}
	return nil
}

// ask requests a page of every controller and calls take with the controller's name and the
// answer, which is nil if the controller does not know the requested name. The error names
// the controllers that have not answered.
func (f *proxyFlags) ask(ctx context.Context, path string, take func(controller string, answer []byte) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("no answer in %s", f.timeout))
	defer cancel()
	if f.address != "" {
		answer, err := getPage(ctx, f.address, path, "")
		if err != nil {
			return fmt.Errorf("%w; %w", err, errNoDebugPages)
		}
		return enough(take(f.address, answer))
	}
	a, err := f.access(ctx)
	if err != nil {
		return err
	}
	return a.ask(ctx, path, take)
}

// enough drops debug.ErrEnough.
func enough(err error) error {
	if errors.Is(err, debug.ErrEnough) {
		return nil
	}
	return err
}

// access is what is needed to query the controllers of a cluster, for as long as the token is
// valid.
type access struct {
	config *rest.Config
	pods   []corev1.Pod
	token  string
}

func (f *proxyFlags) access(ctx context.Context) (*access, error) {
	config, err := f.kube.config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	pods, err := controllers(ctx, client, f.mesh.Namespace)
	if err != nil {
		return nil, err
	}
	token, err := viewerToken(ctx, client, f.mesh.Namespace)
	if err != nil {
		return nil, err
	}
	return &access{config, pods, token}, nil
}

// ask is as that of proxyFlags.
func (a *access) ask(ctx context.Context, path string, take func(controller string, answer []byte) error) error {
	var failed []error
	for _, pod := range a.pods {
		answer, err := forward(ctx, a.config, pod, proxyPort, path, a.token)
		if err == nil {
			if err = take(pod.Name, answer); errors.Is(err, debug.ErrEnough) {
				return nil
			}
		} else {
			err = fmt.Errorf("controller %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// askAny requests a page of one controller, and of the next one if it does not answer. The
// caller limits the time.
func (f *proxyFlags) askAny(ctx context.Context, path string) ([]byte, error) {
	if f.address != "" {
		answer, err := getPage(ctx, f.address, path, "")
		if _, answered := errors.AsType[statusError](err); err != nil && !answered {
			return nil, fmt.Errorf("%w; %w", err, errNoDebugPages)
		}
		return answer, err
	}
	a, err := f.access(ctx)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, pod := range a.pods {
		answer, err := forward(ctx, a.config, pod, proxyPort, path, a.token)
		if err == nil {
			return answer, nil
		}
		failed = append(failed, fmt.Errorf("controller %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	return nil, errors.Join(failed...)
}

// viewerToken returns a token with which only the pages for viewers can be read. So the user's
// own credentials are sent to the API server only.
func viewerToken(ctx context.Context, client kubernetes.Interface, namespace string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{debug.Audience}, ExpirationSeconds: new(int64(viewerLife)),
	}}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, debug.Viewer, request, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("reading the proxies: %w; the Role %s in namespace %s has this right: ask an administrator for a RoleBinding to it", err, debug.Viewer, namespace)
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("reading the proxies: %w; run 'outrigger upgrade', which creates it", err)
	case err != nil:
		return "", fmt.Errorf("requesting a token to read the proxies: %w", err)
	}
	return answer.Status.Token, nil
}

// controllers returns the running pods of the controller.
func controllers(ctx context.Context, client kubernetes.Interface, namespace string) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=outrigger-controller", FieldSelector: "status.phase=Running"})
	if err != nil {
		return nil, fmt.Errorf("listing the controller's pods in %s: %w", namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no controller is running in namespace %s; name another namespace with --mesh-namespace, or its address with --debug-address", namespace)
	}
	return list.Items, nil
}
