package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// ground is an API server, on which the control planes are measured one after the other.
type ground struct {
	*options
	mode   string
	city   *city
	planes []*plane
}

// withGround starts an API server on which the control planes are installed and not running,
// and calls do. There are no services yet.
func withGround(ctx context.Context, o *options, mode string, services int, do func(*ground) error) (err error) {
	dir, err := os.MkdirTemp("", "scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	gateway, err := apiserver.GatewayCRDs()
	if err != nil {
		return err
	}
	crds := []string{filepath.Join(apiserver.Root(), "charts", "outrigger", "crds"), gateway}
	if o.istiod != "" {
		crds = append(crds, o.istioCRDs)
	}
	server, err := apiserver.Run(crds...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	g := &ground{options: o, mode: mode}
	if g.city, err = newCity(server.Config, services, mode, o.istiod != ""); err != nil {
		return err
	}
	if len(o.clients) > 0 {
		if o.program == "" {
			if o.program, err = build(ctx, o.built); err != nil {
				return err
			}
		}
		p, err := installOutrigger(ctx, server, g.city.client, dir, o.program, mode != modePolicy)
		if err != nil {
			return err
		}
		g.planes = append(g.planes, p)
	}
	// istiod has nothing like it.
	if o.istiod != "" && mode != modeOnDemand {
		p, err := installIstiod(ctx, server, g.city.client, dir, o.istiod)
		if err != nil {
			return err
		}
		g.planes = append(g.planes, p)
	}
	return do(g)
}

// visible is how many services each proxy sees.
func (g *ground) visible() int {
	if g.mode == modePermissive {
		return g.city.services
	}
	return len(calleesOf(0, g.city.services))
}

// protocols returns those that are measured with a control plane.
func (o *options) protocols(p *plane) []string {
	if p.name == istiod {
		return o.istiodClients
	}
	return o.clients
}

// idle measures the memory of a control plane without a mesh.
func (g *ground) idle(ctx context.Context, p *plane, r *Result) (err error) {
	if r.Started, err = p.start(ctx); err != nil {
		return errors.Join(err, p.stop())
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.quiet(ctx); err != nil {
		return err
	}
	r.Memory, err = p.memory()
	return err
}

// testMesh is a running control plane whose proxies are a fleet.
type testMesh struct {
	*ground
	plane    *plane
	protocol string
	proxies  int
	fleet    *fleetProcess
	signed   []time.Duration
	loaded   time.Duration
	// starting are the pods that start together; nil before they are needed.
	starting []Pod
	// undo restores the objects that a scenario has changed.
	undo []func(context.Context) error
}

// withMesh starts the control plane and the fleet, whose proxies are not connected, and calls
// do.
func (g *ground) withMesh(ctx context.Context, p *plane, protocol string, proxies int, do func(*testMesh) error) (err error) {
	m := &testMesh{ground: g, plane: p, protocol: protocol, proxies: proxies}
	defer func() { err = errors.Join(err, p.stop()) }()
	if m.loaded, err = p.start(ctx); err != nil {
		return err
	}
	setup, class := p.setup, "envoy"
	setup.Protocol, setup.Visible = protocol, g.visible()
	if protocol == protocolFiles {
		setup.Config, class = p.files, "pipy"
	}
	if setup.Roots, err = p.roots(ctx, g.city.client); err != nil {
		return err
	}
	if setup.Pods, err = g.city.proxies(ctx, proxies, class, p.audience); err != nil {
		return err
	}
	if m.fleet, err = startFleet(setup); err != nil {
		return err
	}
	defer m.fleet.stop()
	r, err := m.fleet.do(Order{Do: doSign, Seconds: 600})
	if err != nil {
		return fmt.Errorf("signing: %w", err)
	}
	m.signed = r.Took
	return do(m)
}

// fleetProcess is the process of a fleet.
type fleetProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

func startFleet(setup Setup) (*fleetProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &fleetProcess{cmd: exec.Command(self, "-fleet")}
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.enc, p.dec = json.NewEncoder(p.in), json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, p.enc.Encode(setup)
}

// do gives the fleet an order and waits for its report.
func (p *fleetProcess) do(o Order) (*Report, error) {
	if o.Seconds == 0 {
		o.Seconds = 120
	}
	if err := p.enc.Encode(o); err != nil {
		return nil, fmt.Errorf("the fleet: %w", err)
	}
	var r Report
	if err := p.dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("the fleet: %w", err)
	}
	if r.Error != "" {
		return &r, errors.New(r.Error)
	}
	return &r, nil
}

func (p *fleetProcess) stop() {
	p.in.Close()
	_ = p.cmd.Wait()
}
