package behaviour

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
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
	node := netip.MustParseAddr(nodeAddress)
	for _, port := range []string{podPort, meshPort, redirectedPort} {
		serveOutsideAt(t, w.Lab().Node(), net.JoinHostPort(nodeAddress, port), nil)
	}
	serveOutsideAt(t, outsider, net.JoinHostPort(inRange.String(), redirectedPort), nil)

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
	w.reads(t, outsider, net.JoinHostPort(pod, "9000"), "echo\n", "echo\n")
	w.closes(t, "plain/outsider", net.JoinHostPort(pod, "8080"), "GET / HTTP/1.1\r\nHost: excluded\r\n\r\n")
}

// listener is a pod or the node.
type listener interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
}
