package cli

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/page"
)

// notHTTP explains a connection to an HTTP port on which something else was sent.
func (w *why) notHTTP(ctx context.Context, f *failure) []string {
	return w.otherProtocol(ctx, f, "tcp", fmt.Sprintf("The sidecar of %s takes the port for HTTP, and what was sent is not HTTP.", nameOf(f.pod)))
}

// silent explains a connection to an HTTP port whose client has waited silently.
func (w *why) silent(ctx context.Context, f *failure) []string {
	return w.otherProtocol(ctx, f, "tcp-server-first",
		fmt.Sprintf("The sidecar of %s takes the port for HTTP, where the client speaks first. It has waited %v, and the application has sent nothing.", nameOf(f.pod), f.last.Duration.Round(time.Second)),
		"This is normal for a client of HTTP that opens connections in advance.")
}

// otherProtocol explains a connection to a port that the sidecar takes for HTTP, and proposes the
// appProtocol.
func (w *why) otherProtocol(ctx context.Context, f *failure, proposal string, sent ...string) []string {
	const setting = "If it is another protocol, set appProtocol of the Service's port: for example tcp, or tcp-server-first if the server speaks first, as MySQL, SMTP and SSH do."
	if !f.outbound {
		return append(sent, setting)
	}
	service, port, err := w.serviceAt(ctx, f.last.Destination)
	switch {
	case err != nil:
		w.warn("finding the Service at %s: %v", f.last.Destination, err)
	case service != nil:
		called := fmt.Sprintf("The application has called port %d of Service %s/%s.", service.Spec.Ports[port].Port, service.Namespace, service.Name)
		command := fmt.Sprintf(`kubectl patch service %s -n %s --type=json -p '[{"op": "add", "path": "/spec/ports/%d/appProtocol", "value": "%s"}]'`, service.Name, service.Namespace, port, proposal)
		return slices.Concat([]string{called}, sent, []string{setting, command})
	case f.last.Destination == "":
		return append(sent, setting, "The line does not say which port it was; 'outrigger validate --from-cluster' lists ports whose name or number is not that of HTTP.")
	}
	return slices.Concat([]string{fmt.Sprintf("The application has called %s.", f.last.Destination)}, sent, []string{setting})
}

// serviceAt returns the Service with an address and port as its own, and the index of the port. It
// returns nil if there is none.
func (w *why) serviceAt(ctx context.Context, address string) (*corev1.Service, int, error) {
	host, number, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) == nil {
		return nil, 0, nil
	}
	services, err := page.All[corev1.Service](ctx, w.client.CoreV1().Services(metav1.NamespaceAll).List, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	for i := range services {
		for _, ip := range append(services[i].Spec.ClusterIPs, services[i].Spec.ClusterIP) {
			// Equal addresses may be written in two ways.
			if one := net.ParseIP(ip); one == nil || !one.Equal(net.ParseIP(host)) {
				continue
			}
			for at, port := range services[i].Spec.Ports {
				if strconv.Itoa(int(port.Port)) == number {
					return &services[i], at, nil
				}
			}
		}
	}
	return nil, 0, nil
}
