package behaviour

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// The ports that a pod or the MeshConfig excludes, and one that nobody does.
const (
	podPort, meshPort, redirectedPort = "8301", "8302", "8303"
)

// excluded is a pod whose annotations exclude ports and a range.
const excluded = `
apiVersion: v1
kind: Pod
metadata:
  name: excluded
  namespace: users
  annotations:
    openservicemesh.io/outbound-port-exclusion-list: "` + podPort + `"
    openservicemesh.io/outbound-ip-range-exclusion-list: %s/32
    openservicemesh.io/inbound-port-exclusion-list: "9000"
spec:
  serviceAccountName: excluded
  containers: [{name: app, image: in-the-test}]
`

// testExclusions calls outside the mesh from a pod that may not leave it, and calls that
// pod from outside.
func testExclusions(t *testing.T, w *testMesh) {
	outsider := w.pod(t, "plain/outsider")
	inRange := outsider.Addresses()[0]
	serve := func(on listener, address netip.Addr, port string) {
		l, err := on.Listen(t.Context(), "tcp", net.JoinHostPort(address.String(), port))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "outside")
		})}
		t.Cleanup(func() { server.Close(); l.Close() })
		go server.Serve(l)
	}
	node := netip.MustParseAddr(nodeAddress)
	for _, port := range []string{podPort, meshPort, redirectedPort} {
		serve(w.Lab().Node(), node, port)
	}
	serve(outsider, inRange, redirectedPort)

	// The mesh's exclusions apply to pods that start later.
	w.configure(t, "outboundPortExclusionList: ["+meshPort+"]", "")
	w.apply(t, "excluded.yaml", fmt.Sprintf(excluded, inRange))
	startApplication(t, w.pod(t, "users/excluded"))
	url := func(address netip.Addr, port string) string {
		return "http://" + net.JoinHostPort(address.String(), port) + "/"
	}
	for _, direct := range []string{url(node, podPort), url(node, meshPort), url(inRange, redirectedPort)} {
		w.get(t, "users/excluded", direct, isOutside)
	}
	w.denies(t, "users/excluded", url(node, redirectedPort))
	pod := w.pod(t, "users/excluded").Addresses()[0].String()
	w.eventually(t, func() error {
		got, err := line(outsider, net.JoinHostPort(pod, "9000"), "echo\n")
		if err != nil || got != "echo\n" {
			return fmt.Errorf("the excluded port answers %q, %v", got, err)
		}
		return nil
	})
	w.closes(t, "plain/outsider", net.JoinHostPort(pod, "8080"), "GET / HTTP/1.1\r\nHost: excluded\r\n\r\n")
}

// listener is a pod or the node.
type listener interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
}
