package agent

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
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

// identityPort is the signing service's port.
const identityPort = "15129"

// defaultListen is the address that the kubelet probes.
const defaultListen = ":15901"

// defaultListenMetrics is the address that Prometheus scrapes.
const defaultListenMetrics = ":15010"

var runCommand = command{
	name:    "run",
	usage:   "run [FLAGS]",
	summary: "obtain the pod's identity, run the proxy, answer probes (the sidecar container)",
	long: `Run obtains the pod's identity from the controller and keeps its files up to date,
mirrors the driver's repository if there is one, runs the proxy as OUTRIGGER_AGENT
specifies, answers /ready, /alive, /metrics and the app's probes, and on SIGTERM drains
and stops the proxy. A second SIGTERM stops it at once.

It exits after a POST to /quitquitquit from within the pod and, with --exit-with, when
the named processes have exited. That is for Jobs on clusters without native sidecars,
whose pods would never complete otherwise:

  # in the Job's own container, as the last step
  curl -X POST http://127.0.0.1:15901/quitquitquit

  # without touching the app: a pod with shareProcessNamespace: true and
  containers:
  - name: outrigger-proxy
    args: [--exit-with=report]`,
	prepare: func(p *program, flags *flag.FlagSet) func([]string) error {
		o := &runOptions{timings: p.timings}
		flags.StringVar(&o.listen, "listen", defaultListen, "`ADDRESS` to listen on for probes")
		flags.StringVar(&o.listenMetrics, "listen-metrics", defaultListenMetrics, "`ADDRESS` to listen on for Prometheus, if the proxy leaves its metrics to the agent")
		flags.StringVar(&o.identityAddress, "identity-address", "", "`HOST:PORT` of the signing service, if it is not port "+identityPort+" of $OUTRIGGER_CONTROLLER")
		flags.StringVar(&o.identityDir, "identity-dir", agentspec.IdentityDir, "`DIR` for key.pem, chain.pem, bundle.pem and files derived from them")
		flags.StringVar(&o.tokenFile, "token-file", agentspec.TokenFile, "`FILE` with the service account's token")
		flags.StringVar(&o.bundleFile, "bundle-file", agentspec.BundleFile, "`FILE` with the trust bundle; it may appear later")
		flags.StringVar(&o.certificateDir, "certificate-dir", agentspec.CertificateDir, "`DIR` in which the kubelet maintains key, certificate and trust bundle; without it the agent requests certificates")
		flags.StringVar(&o.successorSocket, "successor-socket", agentspec.SuccessorSocket, "`PATH` of the socket for containers with another version of the proxy")
		flags.Var(&o.exitWith, "exit-with", "exit when the process with this `NAME` has been seen and has exited; if repeated, when all of them have")
		flags.Var(&o.level, "log-level", "`LEVEL` of the agent's own log: debug, info, warn or error")
		return func([]string) error {
			config, err := readConfig(p.env)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewJSONHandler(p.stderr, &slog.HandlerOptions{Level: slog.Level(o.level)}))
			return run(config, o, log)
		}
	},
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

// run is the agent in the sidecar container. It returns when the proxy has been stopped.
func run(c *config, o *runOptions, log *slog.Logger) error {
	kit.LimitResources()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	if c.ignored != nil {
		log.Warn("this agent does not know a field of its configuration; the init image is older than the injector", "reason", c.ignored.Error())
	}
	metrics := new(kit.Metrics)
	observer, err := record.New(&c.spec, record.Workload{Identity: c.identity, Class: c.class, Name: c.workload}, o.listenMetrics, o.timings, log, metrics)
	if err != nil {
		return err
	}
	var env []string
	for _, v := range c.spec.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	children, err := process.NewChildren(append(env, observer.Env()...), observer.Pipes())
	if err != nil {
		return err
	}
	identity, err := identity.New(identity.Options{
		Identity: c.identity, PodUID: c.podUID, Address: cmp.Or(o.identityAddress, net.JoinHostPort(c.controller, identityPort)), Controller: c.controller,
		TokenFile: o.tokenFile, BundleFile: o.bundleFile, CertificateDir: o.certificateDir, Dir: o.identityDir, Shared: c.spec.ShareIdentity,
		Timings: o.timings, Log: log, Metrics: metrics,
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}

	served := make(chan error, 4)
	observer.Start()
	defer observer.Finish()
	if c.spec.Records != nil {
		go func() { served <- observer.Serve() }()
	}
	proxy := process.NewProxy(&c.spec, children, identity.Report, o.timings, log, metrics)
	follower, err := rollout.New(c.spec.Mirror, c.controller, identity, proxy, o.timings, log, metrics)
	if err != nil {
		return err
	}
	shutdown := newShutdown(log)

	var draining atomic.Bool
	ready := func(ctx context.Context) error {
		if draining.Load() {
			return errors.New("the proxy is draining")
		}
		if err := identity.Check(c.spec.DisabledMTLS); err != nil {
			return err
		}
		if !follower.IsReady() {
			return errors.New("the proxy's files have not arrived from the repository yet")
		}
		return proxy.CheckReady(ctx)
	}
	server := probe.NewServer(probe.Options{
		Probes: c.spec.Probes, PodIP: c.podIP, Ready: ready, Alive: func(context.Context) error { return proxy.Alive() },
		Expiry: identity.Expiry, Quit: func() { shutdown.begin("quitquitquit") }, Live: follower.Handler(), Log: log, Metrics: metrics,
	})
	web := server.HTTP()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	go func() { served <- web.Serve(listener) }()
	defer web.HTTP.Close()
	defer server.FinishHooks(o.timings.Hook, shutdown.force)
	if c.spec.Secrets != nil {
		socket, err := socket.ListenForOwnUser("unix", c.spec.Secrets.Socket)
		if err != nil {
			return err
		}
		discovery := identity.SecretServer()
		go func() { served <- discovery.Serve(socket) }()
		defer discovery.Stop()
	}
	if c.spec.OnDemand != nil {
		unknown, err := net.Listen("tcp", agentspec.UnknownAddress)
		if err != nil {
			return err
		}
		defer unknown.Close()
		relay := ondemand.NewRelay(*c.spec.OnDemand, identity.Learn, o.timings, log, metrics)
		go func() { served <- relay.Serve(ctx, unknown) }()
	}
	go identity.Run(ctx, func() {
		if !follower.FollowIdentity() {
			proxy.RequestReload()
		}
	})
	go proxy.Report(ctx)
	go shutdown.onSignals(signals)
	if len(o.exitWith) > 0 {
		go shutdown.watch(ctx, o.exitWith, o.timings.Watch)
	}

	select {
	case <-shutdown.begun:
		return nil
	case err := <-served:
		return err
	case <-identity.Ready():
	}
	if err := writeFiles(c.spec.Files); err != nil {
		return err
	}
	go follower.Run(ctx)
	select {
	case <-shutdown.begun:
		return nil
	case err := <-served:
		return err
	case <-follower.Ready():
	}
	go proxy.Run(follower.ProcessEnded)
	if c.spec.Upgrade != nil {
		socket, err := socket.ListenForOwnUser("unixpacket", o.successorSocket)
		if err != nil {
			return err
		}
		defer socket.Close()
		successors := handover.New(&c.spec, proxy, children, filepath.Dir(o.successorSocket), o.timings, log, metrics)
		go func() { served <- successors.Serve(socket) }()
	}
	select {
	case <-shutdown.begun:
	case err = <-served:
	}
	draining.Store(true)
	server.FinishHooks(o.timings.Hook, shutdown.force)
	proxy.StopRestarts()
	proxy.Stop(shutdown.force)
	return err
}

func writeFiles(files []agentspec.File) error {
	for _, f := range files {
		if err := kit.WriteFile(f.Path, strings.NewReader(f.Content), 0o644); err != nil {
			return fmt.Errorf("writing the proxy's file %s: %w", f.Path, err)
		}
	}
	return nil
}

// shutdown coordinates the end of the agent.
type shutdown struct {
	log *slog.Logger
	// begun is closed for the first reason to shut down, force by a signal after that.
	begun, force         chan struct{}
	beginOnce, forceOnce sync.Once
}

func newShutdown(log *slog.Logger) *shutdown {
	return &shutdown{log: log, begun: make(chan struct{}), force: make(chan struct{})}
}

func (s *shutdown) begin(reason string) {
	s.beginOnce.Do(func() {
		s.log.Info("shutting down", "reason", reason)
		close(s.begun)
	})
}

func (s *shutdown) onSignals(signals <-chan os.Signal) {
	for signal := range signals {
		if !kit.IsClosed(s.begun) {
			s.begin(signal.String())
			continue
		}
		s.forceOnce.Do(func() {
			s.log.Info("shutting down at once", "reason", signal.String())
			close(s.force)
		})
	}
}
