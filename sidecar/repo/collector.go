package repo

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Collector returns the file that tells the agent where to send spans, see agentspec.Spans. It is empty
// if the View asks for none.
func Collector(view *mesh.View) []byte {
	to, p := view.Settings.Tracing, view.Proxy
	if to == nil {
		return nil
	}
	collector := map[string]any{
		"protocol": to.Protocol, "address": net.JoinHostPort(to.Host, fmt.Sprint(to.Port)), "path": to.Path,
		"service": p.Identity.ServiceAccount + "." + p.Identity.Namespace,
		"tags": map[string]string{
			"component": "proxy", "node_id": p.UID, "k8s.namespace.name": p.Namespace, "k8s.pod.name": p.Name.Name, "service_account": p.Identity.ServiceAccount,
		},
	}
	if len(p.Addresses) > 0 {
		collector["ip"] = p.Addresses[0].String()
	}
	// Maps of texts are always valid JSON.
	content, _ := json.Marshal(collector)
	return append(content, '\n')
}
