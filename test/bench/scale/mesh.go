package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// host is the name in the controller's certificate.
const host = "outrigger-controller." + controlPlane + ".svc"

// other is a control plane that is not Outrigger's, to compare with.
type other struct {
	command, address, host, audience string
}

func (o *other) flags() {
	flag.StringVar(&o.command, "istiod", "", "measure this command in place of Outrigger's controller: it runs istiod with the kubeconfig in $KUBECONFIG")
	flag.StringVar(&o.address, "istiod-address", "127.0.0.1:15012", "where istiod serves configuration with TLS")
	flag.StringVar(&o.host, "istiod-host", "istiod.istio-system.svc", "the name in istiod's certificate")
	flag.StringVar(&o.audience, "istiod-audience", "istio-ca", "audience of the tokens by which proxies authenticate to istiod")
}

func (o *other) is() bool { return o.command != "" }

func (o *other) name() string {
	if o.is() {
		return "istiod"
	}
	return "outrigger"
}

// testMesh is a mesh whose proxies are a fleet.
type testMesh struct {
	*options
	mode       string
	city       *city
	controller *controller
	fleet      *fleetProcess
	signed     []time.Duration
	loaded     time.Duration
}

// withMesh starts an API server with the objects of so many services, the control plane and
// the fleet, whose proxies are not connected, and calls do.
func withMesh(ctx context.Context, o *options, mode string, services int, do func(*testMesh) error) (err error) {
	dir, err := os.MkdirTemp("", "scale-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := o.program
	if program == "" && !o.other.is() {
		if program, err = build(ctx, dir); err != nil {
			return err
		}
	}
	gateway, err := apiserver.GatewayCRDs()
	if err != nil {
		return err
	}
	server, err := apiserver.Run(filepath.Join(root(), "charts", "outrigger", "crds"), gateway)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	m := &testMesh{options: o, mode: mode}
	tokens := audience
	if o.other.is() {
		tokens = o.other.audience
	}
	if m.city, err = newCity(server.Config, services, "envoy", tokens); err != nil {
		return err
	}
	if o.other.is() {
		m.controller, err = installOther(ctx, server, m.city.client, dir, o.other.command)
	} else {
		m.controller, err = installController(ctx, server, m.city.client, dir, program, mode == "permissive")
	}
	if err != nil {
		return err
	}
	if err := m.city.build(ctx, mode == "policy" && !o.other.is()); err != nil {
		return fmt.Errorf("creating the objects: %w", err)
	}
	if m.loaded, err = m.controller.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.controller.stop()) }()
	setup := Setup{Config: "127.0.0.1:15128", Identity: "127.0.0.1:15129", ServerName: host, SOTW: o.protocol == "sotw"}
	if o.other.is() {
		setup.Config, setup.Identity, setup.ServerName, setup.Istio = o.other.address, "", o.other.host, true
	}
	if setup.Roots, err = rootOf(ctx, m.city.client); err != nil {
		return err
	}
	if setup.Pods, err = m.city.proxies(ctx, services); err != nil {
		return err
	}
	if m.fleet, err = startFleet(setup); err != nil {
		return err
	}
	defer m.fleet.stop()
	r, err := m.fleet.do(Order{Do: doSign})
	if err != nil {
		return fmt.Errorf("signing: %w", err)
	}
	m.signed = r.Took
	return do(m)
}

// build compiles the controller.
func build(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "outrigger-core")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, "./cmd/outrigger-core")
	cmd.Dir = root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-tags=grpcnotrace")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	return program, nil
}

// root returns the repository's folder.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return strings.TrimSuffix(filepath.Dir(file), filepath.Join("test", "bench", "scale"))
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
