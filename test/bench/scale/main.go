// Command scale measures what a change costs a control plane, and how long it takes until
// every proxy has it. It runs a real API server, the controller as a process, and a second
// process with real clients of the discovery service, which authenticate with certificates
// of the signing service and acknowledge what they get. It uses only the loopback interface,
// and ends by itself.
package main

import (
	"context"
	"encoding/json"
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

// options are the flags.
type options struct {
	sizes     []int
	modes     []string
	scenarios []string
	protocol  string
	rounds    int
	roll      time.Duration
	program   string
	json      string
	other     other
}

func main() {
	var o options
	sizes := flag.String("sizes", "100,300,1000", "numbers of services; as many proxies are connected")
	modes := flag.String("modes", "policy,permissive", "policy: each identity may call 20 services; permissive: all")
	scenarios := flag.String("scenarios", strings.Join(scenarioNames(), ","), "what to measure, in this order")
	flag.StringVar(&o.protocol, "protocol", "delta", "delta or sotw")
	flag.IntVar(&o.rounds, "rounds", 9, "how often each change is made")
	flag.DurationVar(&o.roll, "roll", time.Minute, "how long pods are replaced, 100 a minute")
	flag.StringVar(&o.program, "controller", "", "the controller's program; the default is to build it")
	flag.StringVar(&o.json, "json", "", "file for the results as JSON")
	o.other.flags()
	toPage := flag.String("page", "", "measure nothing, but write the results in the files of the arguments into this page")
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
		o.modes, o.scenarios = strings.Split(*modes, ","), strings.Split(*scenarios, ",")
		for size := range strings.SplitSeq(*sizes, ",") {
			n, err := strconv.Atoi(size)
			if err != nil || n < 2 {
				return fmt.Errorf("-sizes %s: %q is not a number of at least 2", *sizes, size)
			}
			o.sizes = append(o.sizes, n)
		}
		for _, name := range o.scenarios {
			if !slices.Contains(scenarioNames(), name) {
				return fmt.Errorf("-scenarios: there is no %q, only %s", name, strings.Join(scenarioNames(), ", "))
			}
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

// measure runs all scenarios and prints each result when it is known.
func measure(ctx context.Context, o *options) (err error) {
	var results []Result
	defer func() {
		if o.json == "" {
			return
		}
		text, failed := json.MarshalIndent(results, "", "  ")
		if failed == nil {
			failed = os.WriteFile(o.json, append(text, '\n'), 0o644)
		}
		err = errors.Join(err, failed)
	}()
	printHead()
	for _, mode := range o.modes {
		for _, size := range o.sizes {
			err := withMesh(ctx, o, mode, size, func(m *testMesh) error {
				for _, name := range o.scenarios {
					r := Result{ControlPlane: o.other.name(), Protocol: o.protocol, Mode: mode, Services: size, Proxies: size, Scenario: name}
					if err := m.run(ctx, name, &r); err != nil {
						if errors.Is(err, errOmitted) {
							continue
						}
						return fmt.Errorf("%s with %d services, %s: %w", name, size, mode, err)
					}
					results = append(results, r)
					r.print()
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
