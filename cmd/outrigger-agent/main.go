// Command outrigger-agent runs in every pod of the mesh: it redirects the pod's traffic,
// obtains the pod's identity and runs the proxy.
package main

import (
	"fmt"
	"os"

	"github.com/outrigger-mesh/outrigger/internal/agent"
	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

func main() {
	os.Exit(agent.Main(os.Args[1:], agent.Rules{
		Apply: func(redirection agentspec.Redirection) error {
			return capture.Apply(redirection, capture.Options{Warn: func(err error) { fmt.Fprintln(os.Stderr, "warning:", err) }})
		},
		Present: capture.Redirected,
	}))
}
