package socket

import (
	"net/netip"

	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// LocalOnly is the answer to requests from outside the pod.
const LocalOnly = "only the pod's own containers may send this, over 127.0.0.1 or ::1"

// IsLocal reports whether the client is in the pod. Requests that the proxy forwards from
// the network also come from a loopback address, AppSource4.
func IsLocal(client string) bool {
	addr := limit.Address(client)
	return addr.IsLoopback() && addr != AppSource4
}

// The proxy's connections to the pod's own address are redirected to its inbound port, for
// pods that call their own Service. Connections from these source addresses are not: the
// proxy's inbound side and the agent use them to reach the app.
var (
	AppSource4 = netip.MustParseAddr("127.0.0.6")
	AppSource6 = netip.MustParseAddr("::6")
)
