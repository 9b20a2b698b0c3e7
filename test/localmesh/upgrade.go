package localmesh

import (
	"cmp"
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/upgrade"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// Upgrade adds a container to a running pod in which another program of the pod's proxy takes
// over, as the controller does in a cluster. An empty program is the same one. The container
// ends when the agent does not need it any longer.
func (m *Mesh) Upgrade(name, program string) (*lab.Container, error) {
	pod := m.Pod(name)
	if pod == nil {
		return nil, fmt.Errorf("upgrading the proxy of pod %s: there is no such pod", name)
	}
	object := pod.Object()
	class := inject.ClassOf(object)
	program = cmp.Or(program, m.options.Programs.Proxies[class])
	folder, err := m.folderOf(class, program)
	if err != nil {
		return nil, fmt.Errorf("the program of sidecar class %s, %s: %w", class, program, err)
	}
	container, err := upgrade.Container(object, program)
	if err != nil {
		return nil, fmt.Errorf("upgrading the proxy of pod %s: %w", name, err)
	}
	return pod.AddEphemeral(container, lab.Image{Files: map[string]string{binDir: folder}, HostRoot: true})
}
