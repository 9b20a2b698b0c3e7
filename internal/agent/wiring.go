package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/handover"
	"github.com/outrigger-mesh/outrigger/internal/agent/identity"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/ondemand"
	"github.com/outrigger-mesh/outrigger/internal/agent/probe"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
	"github.com/outrigger-mesh/outrigger/internal/agent/record"
	"github.com/outrigger-mesh/outrigger/internal/agent/rollout"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// run is the agent in the sidecar container. It returns when the proxy has been stopped.
func run(c *config, o *runOptions, log *slog.Logger) error {
	kit.LimitResources()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	if c.ignored != nil {
		log.Warn("this agent does not know a field of its configuration; the init image is older than the injector", "reason", c.ignored.Error())
	}
	a, err := newAgent(c, o, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.observer.Start()
	a.closeLater(a.observer.Finish)
	a.closeLater(cancel)
	defer a.close()
	if err := a.listen(ctx); err != nil {
		return err
	}
	go a.proxy.FindVersion()
	go a.identity.Run(ctx, a.renewed)
	go a.proxy.Report(ctx)
	go a.shutdown.onSignals(signals)
	if len(o.exitWith) > 0 {
		go a.shutdown.watch(ctx, o.exitWith, o.timings.Watch)
	}
	if over, err := a.await(a.identity.Ready()); over {
		return err
	}
	if err := writeFiles(c.spec.Files); err != nil {
		return err
	}
	go a.follower.Run(ctx)
	if over, err := a.await(a.follower.Ready()); over {
		return err
	}
	go a.proxy.Run(a.follower.ProcessEnded)
	if err := a.acceptSuccessors(); err != nil {
		return err
	}
	_, err = a.await(nil)
	a.draining.Store(true)
	a.finishHooks()
	a.proxy.StopRestarts()
	a.proxy.Stop(a.shutdown.force)
	return err
}

// agent is the agent's parts in the sidecar container, and how they are connected.
type agent struct {
	config   *config
	options  *runOptions
	log      *slog.Logger
	metrics  *kit.Metrics
	observer *record.Observer
	children *process.Children
	identity *identity.Source
	proxy    *process.Proxy
	follower *rollout.Follower // nil without a mirror
	server   *probe.Server
	shutdown *shutdown
	draining atomic.Bool
	served   chan error // gets why a server has ended
	closers  []func()
}

// newAgent makes the parts, each of which needs those before it only. Nothing runs yet.
func newAgent(c *config, o *runOptions, log *slog.Logger) (*agent, error) {
	a := &agent{config: c, options: o, log: log, metrics: new(kit.Metrics), shutdown: newShutdown(log), served: make(chan error, 5)}
	var err error
	workload := record.Workload{Identity: c.identity, Class: c.class, Name: c.workload}
	if a.observer, err = record.New(&c.spec, workload, o.listenMetrics, o.timings, log, a.metrics); err != nil {
		return nil, err
	}
	if a.children, err = process.NewChildren(append(environmentOf(&c.spec), a.observer.Env()...), a.observer.Pipes()); err != nil {
		return nil, err
	}
	if a.identity, err = identity.New(identity.Options{
		Identity: c.identity, PodUID: c.podUID, Address: cmp.Or(o.identityAddress, net.JoinHostPort(c.controller, identityPort)), Controller: c.controller,
		TokenFile: o.tokenFile, BundleFile: o.bundleFile, CertificateDir: o.certificateDir, Dir: o.identityDir, Shared: c.spec.ShareIdentity,
		Timings: o.timings, Log: log, Metrics: a.metrics,
	}); err != nil {
		return nil, err
	}
	a.proxy = process.NewProxy(&c.spec, a.children, a.identity.Report, o.timings, log, a.metrics)
	if a.follower, err = rollout.New(c.spec.Mirror, c.controller, a.identity, a.proxy, o.timings, log, a.metrics); err != nil {
		return nil, err
	}
	a.server = probe.NewServer(probe.Options{
		Probes: c.spec.Probes, PodIP: c.podIP, Ready: a.ready, Alive: func(context.Context) error { return a.proxy.Alive() },
		Expiry: a.identity.Expiry, Quit: func() { a.shutdown.begin("quitquitquit") }, Live: a.follower.Handler(), Log: log, Metrics: a.metrics,
	})
	return a, nil
}

// environmentOf returns the variables of a Spec, as NAME=VALUE.
func environmentOf(spec *agentspec.Spec) []string {
	var env []string
	for _, v := range spec.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

// ready returns why the pod is not ready, or nil.
func (a *agent) ready(ctx context.Context) error {
	if a.draining.Load() {
		return errors.New("the proxy is draining")
	}
	if err := a.identity.Check(a.config.spec.DisabledMTLS); err != nil {
		return err
	}
	if !a.follower.IsReady() {
		return errors.New("the proxy's files have not arrived from the repository yet")
	}
	return a.proxy.CheckReady(ctx)
}

// renewed lets the proxy read its new identity files.
func (a *agent) renewed() {
	if !a.follower.FollowIdentity() {
		a.proxy.RequestReload()
	}
}

// listen starts the servers, except the one for successors.
func (a *agent) listen(ctx context.Context) error {
	listener, err := net.Listen("tcp", a.options.listen)
	if err != nil {
		return err
	}
	web := a.server.HTTP()
	a.serve(func() error { return web.Serve(listener) })
	a.closeLater(func() { web.HTTP.Close() })
	a.closeLater(a.finishHooks)
	spec := &a.config.spec
	if spec.Records != nil {
		a.serve(a.observer.Serve)
	}
	if spec.Secrets != nil {
		listener, err := socket.ListenForOwnUser("unix", spec.Secrets.Socket)
		if err != nil {
			return err
		}
		discovery := a.identity.SecretServer()
		a.serve(func() error { return discovery.Serve(listener) })
		a.closeLater(discovery.Stop)
	}
	if spec.OnDemand != nil {
		listener, err := net.Listen("tcp", agentspec.UnknownAddress)
		if err != nil {
			return err
		}
		relay := ondemand.NewRelay(*spec.OnDemand, a.identity.Learn, a.options.timings, a.log, a.metrics)
		a.serve(func() error { return relay.Serve(ctx, listener) })
		a.closeLater(func() { listener.Close() })
	}
	return nil
}

// acceptSuccessors lets other versions of the proxy take over, if it can be upgraded.
func (a *agent) acceptSuccessors() error {
	if a.config.spec.Upgrade == nil {
		return nil
	}
	path := a.options.successorSocket
	listener, err := socket.ListenForOwnUser("unixpacket", path)
	if err != nil {
		return err
	}
	successors := handover.New(&a.config.spec, a.proxy, a.children, filepath.Dir(path), a.options.timings, a.log, a.metrics)
	a.serve(func() error { return successors.Serve(listener) })
	a.closeLater(func() { listener.Close() })
	return nil
}

func (a *agent) serve(server func() error) {
	go func() { a.served <- server() }()
}

// await waits for a channel to be closed. It is over earlier if the agent must end, with an error
// if a server has failed.
func (a *agent) await(ready <-chan struct{}) (over bool, err error) {
	select {
	case <-a.shutdown.begun:
		return true, nil
	case err := <-a.served:
		return true, err
	case <-ready:
		return false, nil
	}
}

// finishHooks waits for preStop hooks of the app, which need its proxy.
func (a *agent) finishHooks() { a.server.FinishHooks(a.options.timings.Hook, a.shutdown.force) }

// closeLater has close call a function, after those that come later.
func (a *agent) closeLater(f func()) { a.closers = append(a.closers, f) }

func (a *agent) close() {
	for i := len(a.closers) - 1; i >= 0; i-- {
		a.closers[i]()
	}
}

func writeFiles(files []agentspec.File) error {
	for _, f := range files {
		if err := kit.WriteFile(f.Path, strings.NewReader(f.Content), 0o644); err != nil {
			return fmt.Errorf("writing the proxy's file %s: %w", f.Path, err)
		}
	}
	return nil
}

type runOptions struct {
	listen, listenMetrics              string
	identityAddress                    string
	identityDir, tokenFile, bundleFile string
	successorSocket                    string
	certificateDir                     string
	exitWith                           stringList
	level                              logLevel
	timings                            kit.Timings
}

// identityPort is the signing service's port.
const identityPort = "15129"
