package main

import (
	"fmt"
	"time"
)

// Result is what a scenario has measured. Durations are in nanoseconds as JSON.
type Result struct {
	ControlPlane, Protocol, Mode, Scenario string
	Services, Proxies                      int
	// Rounds is how often the change was made.
	Rounds int
	// Median and Max are the times until the last proxy had acknowledged the change, of the
	// rounds. Of connect, reconnect and restart they are the times that one proxy had no
	// control plane or no configuration, of the proxies.
	Median, Max time.Duration
	// All is the time until all proxies were served, from the order to connect or from the
	// start of the control plane's process.
	All time.Duration `json:",omitempty"`
	// CPU is the controller's CPU time: of changes the median of the rounds.
	CPU time.Duration
	// Held is how many bytes of memory one proxy takes: one that is connected, of the scenario
	// memory, and one that does not read, of stall.
	Held int64
	// CaughtUp is how long the last proxy that has not read takes until it has everything.
	CaughtUp time.Duration
	// Responses, Resources and Bytes are what all proxies have received in all rounds.
	Responses, Resources, Bytes int64
	// Resent are the resources or files that proxies have received although they had them.
	Resent int64
	// Broken counts connections that have ended.
	Broken int64
	// Signed is the median of a certificate's request, and Started how long the controller
	// took until it was ready.
	Signed, Started time.Duration
	Memory          Memory
	// Certificates is set for scenarios in which pods start. The times are then those of each
	// pod, from its start until it has its certificate.
	Certificates *Certificates `json:",omitempty"`
	// Failed says why the scenario has not ended.
	Failed string `json:",omitempty"`
}

func (r *Result) received(report *Report) {
	r.Responses += report.Responses
	r.Resources += report.Resources
	r.Bytes += report.Bytes
	r.Resent += report.Resent
	r.Broken += report.Broken
}

func printHead() {
	fmt.Printf("%-10s %-6s %-10s %-9s %8s %10s %10s %10s %10s %12s %12s %9s %9s %9s\n", "plane", "proto", "mode", "scenario", "services",
		"median", "max", "CPU", "responses", "resources", "bytes", "resident", "anonymous", "heap")
}

func (r *Result) print() {
	if r.Failed != "" {
		fmt.Printf("%-10s %-6s %-10s %-9s %8d %s\n", r.ControlPlane, r.Protocol, r.Mode, r.Scenario, r.Services, r.Failed)
		return
	}
	n := int64(max(r.Rounds, 1))
	fmt.Printf("%-10s %-6s %-10s %-9s %8d %10s %10s %10s %10d %12d %12d %7dMi %7dMi %7dMi\n", r.ControlPlane, r.Protocol, r.Mode, r.Scenario, r.Services,
		r.Median.Round(100*time.Microsecond), r.Max.Round(100*time.Microsecond), r.CPU.Round(100*time.Microsecond),
		r.Responses/n, r.Resources/n, r.Bytes/n, r.Memory.Resident>>20, r.Memory.Anonymous>>20, r.Memory.Heap>>20)
	if r.Started > 0 || r.Signed > 0 {
		fmt.Printf("%50s started in %s, a certificate in %s\n", "", r.Started.Round(time.Millisecond), r.Signed.Round(10*time.Microsecond))
	}
	if r.Certificates != nil {
		fmt.Printf("%50s %s\n", "", r.Certificates.describe(r.CPU))
	}
	switch r.Scenario {
	case scenarioMemory:
		fmt.Printf("%50s %s a proxy\n", "", kibibytes(r.Held))
	case scenarioStall:
		fmt.Printf("%50s %s a proxy that does not read, which has everything %s after it reads again; %d connections were broken\n", "",
			kibibytes(r.Held), r.CaughtUp.Round(time.Millisecond), r.Broken)
	case scenarioReconnect, scenarioRestart:
		fmt.Printf("%50s %d resources were sent again, %d connections were broken\n", "", r.Resent, r.Broken)
	}
}
