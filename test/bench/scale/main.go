// Command scale measures what a change costs a control plane, and how long it takes until
// every proxy has it. It runs a real API server, the controller as a process, and a second
// process with real clients of the discovery service, which authenticate with certificates
// of the signing service and acknowledge what they get. It uses only the loopback interface,
// and ends by itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// The modes.
const (
	modePolicy     = "policy"
	modePermissive = "permissive"
	modeOnDemand   = "on-demand"
)

var modes = []string{modePolicy, modePermissive, modeOnDemand}

// options are the flags.
type options struct {
	sizes     []int
	modes     []string
	scenarios []string
	// proxies bounds how many are connected; 0 means as many as there are services.
	proxies int
	rounds  int
	roll    time.Duration
	within  time.Duration
	json    string
	// profiles is the folder for profiles; empty for none.
	profiles string
	// clients are the protocols of Outrigger's clients, and istiodClients of istiod's.
	clients, istiodClients []string
	// program is the controller's, and built the folder for it if it is to be built.
	program, built    string
	istiod, istioCRDs string
}

func main() {
	var o options
	sizes := flag.String("sizes", "100,300,1000", "numbers of services; as many proxies are connected")
	wanted := flag.String("modes", "policy,permissive", "policy: each identity may call 20 services; permissive: all; on-demand: all, and it has used 20")
	scenarios := flag.String("scenarios", strings.Join(scenarioNames(), ","), "what to measure, in this order")
	clients := flag.String("clients", protocolDelta+","+protocolFiles, "protocols of the proxies: delta and sotw for the discovery service, files for the file repository; empty to omit Outrigger")
	flag.IntVar(&o.proxies, "proxies", 0, "how many proxies are connected at most; 0 for as many as there are services")
	flag.IntVar(&o.rounds, "rounds", 9, "how often each change is made")
	flag.DurationVar(&o.roll, "roll", 30*time.Second, "how long pods are replaced, 100 a minute")
	flag.DurationVar(&o.within, "within", time.Minute, "the time in which all pods start in the scenario "+scenarioCertificates)
	flag.StringVar(&o.program, "controller", "", "the controller's program; the default is to build it")
	flag.StringVar(&o.json, "json", "", "file for the results as JSON")
	flag.StringVar(&o.profiles, "profiles", "", "existing folder for the CPU and heap profiles of each scenario; recording them costs the control plane some CPU")
	flag.StringVar(&o.istiod, "istiod", "", "measure this program of istiod too, with the same objects and clients")
	flag.StringVar(&o.istioCRDs, "istio-crds", "", "file or folder with Istio's CRDs, for -istiod")
	istiodClients := flag.String("istiod-clients", protocolDelta+","+protocolSOTW, "protocols of istiod's proxies")
	toPage := flag.String("page", "", "measure nothing, but write the results in the files of the arguments into this page, and the plots beside it")
	isFleet := flag.Bool("fleet", false, "be the proxies for another process of this program")
	flag.Parse()
	if *isFleet {
		exit(runFleet(os.Stdin, os.Stdout))
	}
	if *toPage != "" {
		exit(writePage(*toPage, flag.Args()))
	}
	// The API server's test environment logs by this.
	ctrllog.SetLogger(logr.Discard())
	exit(func() error {
		o.modes, o.scenarios = list(*wanted), list(*scenarios)
		o.clients, o.istiodClients = list(*clients), list(*istiodClients)
		for size := range strings.SplitSeq(*sizes, ",") {
			n, err := strconv.Atoi(size)
			if err != nil || n < 2 {
				return fmt.Errorf("-sizes %s: %q is not a number of at least 2", *sizes, size)
			}
			o.sizes = append(o.sizes, n)
		}
		for flag, given := range map[string]struct{ values, known []string }{
			"modes":          {o.modes, modes},
			"scenarios":      {o.scenarios, scenarioNames()},
			"clients":        {o.clients, []string{protocolDelta, protocolSOTW, protocolFiles}},
			"istiod-clients": {o.istiodClients, []string{protocolDelta, protocolSOTW}},
		} {
			for _, name := range given.values {
				if !slices.Contains(given.known, name) {
					return fmt.Errorf("-%s: there is no %q, only %s", flag, name, strings.Join(given.known, ", "))
				}
			}
		}
		if (o.istiod == "") != (o.istioCRDs == "") {
			return errors.New("-istiod and -istio-crds need each other")
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return measure(ctx, &o)
	}())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// list splits a flag's value.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// measure runs all scenarios and prints each result when it is known. A scenario that does not
// end in time is a result too, and ends what is measured of that control plane with these
// clients.
func measure(ctx context.Context, o *options) (err error) {
	if o.built, err = os.MkdirTemp("", "scale-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.built)
	run := newRun()
	var failures []error
	add := func(r Result, err error) {
		if err != nil {
			r.Failed = err.Error()
			failures = append(failures, fmt.Errorf("%s of %s with %s, %d services, %s: %w", r.Scenario, r.ControlPlane, r.Protocol, r.Services, r.Mode, err))
		}
		run.Results = append(run.Results, r)
		r.print()
	}
	printHead()
	isFirst := true
	for _, mode := range o.modes {
		for _, size := range o.sizes {
			err := withGround(ctx, o, mode, size, func(g *ground) error {
				for _, p := range g.planes {
					if isFirst && slices.Contains(o.scenarios, scenarioIdle) {
						r := Result{ControlPlane: p.name, Protocol: "-", Mode: mode, Scenario: scenarioIdle}
						err := g.idle(ctx, p, &r)
						add(r, err)
					}
				}
				isFirst = false
				if err := g.city.build(ctx); err != nil {
					return fmt.Errorf("creating the objects: %w", err)
				}
				for _, p := range g.planes {
					for _, protocol := range o.protocols(p) {
						if err := g.measure(ctx, p, protocol, add); err != nil {
							return err
						}
					}
				}
				return nil
			})
			if err != nil {
				failures = append(failures, fmt.Errorf("%d services, %s: %w", size, mode, err))
			}
			if ctx.Err() != nil {
				return errors.Join(append(failures, context.Cause(ctx), run.write(o.json))...)
			}
			// What follows may take an hour.
			if err := run.write(o.json); err != nil {
				return err
			}
		}
	}
	return errors.Join(append(failures, run.write(o.json))...)
}

// measure runs all scenarios with a control plane and clients of a protocol.
func (g *ground) measure(ctx context.Context, p *plane, protocol string, add func(Result, error)) error {
	proxies := g.city.services
	if g.proxies > 0 {
		proxies = min(proxies, g.proxies)
	}
	of := Result{ControlPlane: p.name, Protocol: protocol, Mode: g.mode, Services: g.city.services, Proxies: proxies}
	err := g.withMesh(ctx, p, protocol, proxies, func(m *testMesh) error {
		for _, s := range scenarios {
			if !slices.Contains(g.scenarios, s.name) {
				continue
			}
			r := of
			r.Scenario = s.name
			var err error
			if g.profiles != "" {
				err = m.profiled(ctx, s, &r, g.profiles)
			} else {
				err = m.run(ctx, s, &r)
			}
			if errors.Is(err, errOmitted) {
				continue
			}
			add(r, err)
			if err != nil {
				return nil
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		of.Scenario = "start"
		add(of, err)
		return nil
	}
	return err
}
