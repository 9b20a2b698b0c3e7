package main

import (
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/test/bench/process"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// sidecar is the sidecar of a pod.
type sidecar struct {
	class     string
	container *lab.Container
}

func sidecarOf(pod *lab.Pod, class string) *sidecar {
	return &sidecar{class, pod.Container("outrigger-proxy")}
}

// Usage is CPU time and memory of a proxy and of the agent beside it.
type Usage struct {
	ProxyCPU, AgentCPU time.Duration
	// Proxy and Agent are the memory at the end.
	Proxy, Agent process.Memory
}

// processes are the processes of a sidecar. In a lab a proxy's program has the name of its
// class.
type processes struct{ proxy, agent []int }

func (s *sidecar) processes() (p processes, err error) {
	if p.proxy, err = s.container.PIDs(s.class); err != nil {
		return p, err
	}
	if p.agent, err = s.container.PIDs("outrigger-agent"); err != nil {
		return p, err
	}
	if len(p.proxy) == 0 || len(p.agent) == 0 {
		return p, fmt.Errorf("a sidecar of class %s has %d processes of the proxy and %d of the agent", s.class, len(p.proxy), len(p.agent))
	}
	return p, nil
}

// cpu returns the CPU time of the proxy and of the agent.
func (p *processes) cpu() (proxy, agent time.Duration, err error) {
	if proxy, err = cpuOf(p.proxy); err != nil {
		return 0, 0, err
	}
	agent, err = cpuOf(p.agent)
	return proxy, agent, err
}

func cpuOf(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		used, err := process.CPU(pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// memory returns the memory of the proxy and of the agent now.
func (s *sidecar) memory() (proxy, agent process.Memory, err error) {
	p, err := s.processes()
	if err != nil {
		return proxy, agent, err
	}
	if proxy, err = process.MemoryOfAll(p.proxy); err != nil {
		return proxy, agent, err
	}
	agent, err = process.MemoryOfAll(p.agent)
	return proxy, agent, err
}
