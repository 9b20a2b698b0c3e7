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
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// identityPort is the signing service's.
const identityPort = "15129"

// defaultListen is where the kubelet asks the agent.
const defaultListen = ":15901"

var runCommand = command{
	name:    "run",
	usage:   "run [FLAGS]",
	summary: "get the pod's identity, run the proxy, answer probes (the sidecar container)",
	long: `Run gets the pod's identity from the controller and keeps its files up to date,
mirrors the driver's repository where there is one, runs the proxy as OUTRIGGER_AGENT
says, answers /ready, /alive, /metrics and the app's probes, and on SIGTERM drains and
stops the proxy. A second SIGTERM stops it at once.

It ends by itself after a POST to /quitquitquit from within the pod, and, with
--exit-with, when the named processes have ended. That is for Jobs on clusters
without native sidecars, whose pods would never end otherwise:

  # in the Job's own container, as the last step
  curl -X POST http://127.0.0.1:15901/quitquitquit

  # without touching the app: a pod with shareProcessNamespace: true and
  containers:
  - name: outrigger-proxy
    args: [--exit-with=report]`,
	prepare: func(p *program, flags *flag.FlagSet) func([]string) error {
		o := &runOptions{pace: p.pace}
		flags.StringVar(&o.listen, "listen", defaultListen, "`ADDRESS` that is listened on for probes")
		flags.StringVar(&o.identityAddress, "identity-address", "", "`HOST:PORT` of the signing service, if it is not port "+identityPort+" of $OUTRIGGER_CONTROLLER")
		flags.StringVar(&o.identityDir, "identity-dir", agentspec.IdentityDir, "`DIR` for key.pem, chain.pem, bundle.pem and what is made of them")
		flags.StringVar(&o.tokenFile, "token-file", agentspec.TokenFile, "`FILE` with the service account's token")
		flags.StringVar(&o.bundleFile, "bundle-file", agentspec.BundleFile, "`FILE` with the trust bundle, which may come later")
		flags.Var(&o.exitWith, "exit-with", "end when the process with this `NAME` has been seen and has ended; may be given several times, for all of them")
		flags.Var(&o.level, "log-level", "debug, info, warn or error, as the `LEVEL` of the agent's own log")
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
	listen, identityAddress            string
	identityDir, tokenFile, bundleFile string
	exitWith                           words
	level                              logLevel
	pace                               pace
}

// run is the agent in the sidecar container. It returns when the proxy has ended and is
// not to be started again.
func run(c *config, o *runOptions, log *slog.Logger) error {
	frugal()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	if c.ignored != nil {
		log.Warn("this agent does not know all of its configuration; the init image is older than the injector", "reason", c.ignored.Error())
	}
	children, err := newChildren(c.spec.Env)
	if err != nil {
		return err
	}
	secrets := newSecrets(log)
	store, err := openStore(o.identityDir, secrets.set)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}

	metrics := new(metrics)
	signer := signer{
		address:    cmp.Or(o.identityAddress, net.JoinHostPort(c.controller, identityPort)),
		serverName: c.controller, tokenFile: o.tokenFile,
	}
	reporter := newReporter(signer.reportWith(store), o.pace, log)
	proxy := newProxy(&c.spec, children, reporter, o.pace, log, metrics)
	var follower *follower
	if c.spec.Mirror != nil {
		if follower, err = newFollower(c, store, proxy, children, o.pace, log, metrics); err != nil {
			return err
		}
	}
	keeper := newKeeper(subject{c.identity, c.podUID}, signer, store, o.bundleFile, o.pace, log, metrics, func() {
		if follower != nil {
			follower.renewed.ring()
		}
		if c.spec.Mirror == nil || c.spec.Mirror.Live == "" {
			proxy.reloadSoon()
		}
	})
	ending := newEnding(log)

	var draining atomic.Bool
	server := newServer(c.spec.Probes, newProber(c.podIP), log, metrics)
	server.ready = func(ctx context.Context) error {
		switch {
		case draining.Load():
			return errDraining
		case keeper.end.Load() == 0:
			return errors.New("the pod has no certificate yet")
		case !c.spec.DisabledMTLS && keeper.end.Load() <= time.Now().Unix():
			return fmt.Errorf("the pod's certificate has ended at %s", time.Unix(keeper.end.Load(), 0).UTC().Format(time.RFC3339))
		case !follower.isThere():
			return errors.New("the proxy's files have not come from the repository yet")
		}
		return proxy.checkReady(ctx)
	}
	server.alive = func(context.Context) error { return proxy.alive() }
	server.expiry = keeper.end.Load
	server.quit = func() { ending.begin("quitquitquit") }
	if follower != nil {
		server.live, follower.poller.hasten = follower.live, keeper.hasten
	}
	web := server.http()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	served := make(chan error, 2)
	go func() { served <- web.Serve(listener) }()
	defer web.HTTP.Close()
	if c.spec.Secrets != nil {
		socket, err := listenForOwnUser(c.spec.Secrets.Socket)
		if err != nil {
			return err
		}
		discovery := secrets.server()
		go func() { served <- discovery.Serve(socket) }()
		defer discovery.Stop()
	}
	go keeper.run(ctx)
	go reporter.run(ctx)
	go ending.onSignals(signals)
	if len(o.exitWith) > 0 {
		go ending.watch(ctx, o.exitWith, o.pace.watch)
	}

	select {
	case <-ending.begun:
		return nil
	case err := <-served:
		return err
	case <-keeper.got:
	}
	if err := writeFiles(c.spec.Files); err != nil {
		return err
	}
	if follower != nil {
		go follower.run(ctx)
		select {
		case <-ending.begun:
			return nil
		case err := <-served:
			return err
		case <-follower.got:
		}
	}
	go proxy.run()
	select {
	case <-ending.begun:
	case err = <-served:
	}
	draining.Store(true)
	proxy.leave()
	proxy.stop(c.spec.Drain, ending.hurry)
	return err
}

// memoryLimit is what an agent should need that mirrors no files.
const memoryLimit = 16 << 20

// frugal makes the most of little memory: the agent is in every pod, and has time.
func frugal() {
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(memoryLimit)
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
}

func writeFiles(files []agentspec.File) error {
	for _, f := range files {
		if err := writeFile(f.Path, strings.NewReader(f.Content), 0o644); err != nil {
			return fmt.Errorf("writing the proxy's file %s: %w", f.Path, err)
		}
	}
	return nil
}

// ending is how the agent comes to its end.
type ending struct {
	log *slog.Logger
	// begun is closed by the first reason to end, hurry by a signal after it.
	begun, hurry         chan struct{}
	beginOnce, hurryOnce sync.Once
}

func newEnding(log *slog.Logger) *ending {
	return &ending{log: log, begun: make(chan struct{}), hurry: make(chan struct{})}
}

func (e *ending) begin(reason string) {
	e.beginOnce.Do(func() {
		e.log.Info("ending", "reason", reason)
		close(e.begun)
	})
}

func (e *ending) onSignals(signals <-chan os.Signal) {
	for s := range signals {
		if !isClosed(e.begun) {
			e.begin(s.String())
			continue
		}
		e.hurryOnce.Do(func() {
			e.log.Info("ending at once", "reason", s.String())
			close(e.hurry)
		})
	}
}
