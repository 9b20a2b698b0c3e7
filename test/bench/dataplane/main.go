// Command dataplane measures what sidecars cost: the latency that they add to a request,
// their CPU time and memory, for each class and each pair of classes; beside hand-written
// proxies, and with one part after the other switched off. It runs real proxies with real
// redirection and mTLS in the network namespaces of a lab, so the machine's network is not
// changed, and ends by itself.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/bench/page"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// plan is what is measured.
type plan struct {
	classes []string
	parts   []string
	loads   []load
	// stepLoads are those of the steps.
	stepLoads []load
	timing    timing
	services  []int
	modes     []mode
	// settle is how long a sidecar is idle before its memory is read.
	settle  time.Duration
	starts  int
	threads int
	json    string
	// inspect is that of bench.
	inspect func(context.Context, map[mode]*localmesh.Mesh, []pair) error
}

// The parts, in the order in which they are measured.
const (
	partPairs  = "pairs"
	partSteps  = "steps"
	partMemory = "memory"
	partStart  = "start"
	partEffect = "effect"
)

var parts = []string{partPairs, partSteps, partMemory, partStart, partEffect}

func main() {
	lab.Enter()
	classes := flag.String("classes", "envoy,haproxy,pipy", "classes of sidecars")
	chosen := flag.String("parts", strings.Join(parts, ","), "what to measure: pairs of classes under each load; steps, one class with something switched off; memory; start; effect, how long a policy takes")
	speaks := flag.String("protocols", "HTTP/1.1,HTTP/2,gRPC,TCP", "protocols of the pairs")
	connections := flag.String("connections", "1,16,64", "numbers of connections of the pairs; each carries one request at a time")
	rate := flag.Int("rate", 1000, "the fixed rate, in requests a second")
	services := flag.String("services", "100,1000", "numbers of services for the memory")
	p := plan{modes: []mode{permissive, byPolicy, onDemand}, timing: timing{after: 1200 * time.Millisecond}}
	flag.IntVar(&p.timing.rounds, "rounds", 2, "rounds of each load and pair; the steps have twice as many")
	flag.DurationVar(&p.timing.each, "each", 800*time.Millisecond, "length of a round")
	flag.DurationVar(&p.timing.warm, "warm", 200*time.Millisecond, "length of the round before, which does not count")
	flag.DurationVar(&p.settle, "settle", 5*time.Second, "how long sidecars are idle before their memory is read")
	flag.IntVar(&p.starts, "starts", 5, "how often a pod of each class is started, and a policy made and removed")
	flag.IntVar(&p.threads, "threads", 1, "worker threads of each proxy")
	flag.StringVar(&p.json, "json", "", "file for the results as JSON")
	short := flag.Bool("short", false, "only try whether everything works: short rounds, few connections, small meshes")
	toPage := flag.String("page", "", "measure nothing, but write the results in the file of the argument into this page")
	flag.Parse()
	if *toPage != "" {
		exit(writePage(*toPage, flag.Args()))
	}
	exit(func() error {
		p.classes, p.parts = strings.Split(*classes, ","), strings.Split(*chosen, ",")
		if *short {
			p.timing, p.settle, p.starts = timing{rounds: 1, each: 50 * time.Millisecond, warm: 50 * time.Millisecond}, 100*time.Millisecond, 1
			*connections, *services = "4", "10"
		}
		if err := p.parse(*speaks, *connections, *services, *rate); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return run(ctx, &p)
	}())
}

func exit(err error) {
	switch {
	case errors.Is(err, lab.ErrUnavailable):
		fmt.Println("SKIPPED:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "dataplane:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// parse fills in the loads and the sizes of the meshes.
func (p *plan) parse(speaks, connections, services string, rate int) error {
	for _, part := range p.parts {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("-parts: there is no %q, only %s", part, strings.Join(parts, ", "))
		}
	}
	if rate < 1 {
		return fmt.Errorf("-rate %d: it must be at least 1", rate)
	}
	counts, err := numbers("-connections", connections)
	if err != nil {
		return err
	}
	if p.services, err = numbers("-services", services); err != nil {
		return err
	}
	for name := range strings.SplitSeq(speaks, ",") {
		if !slices.Contains(protocols, protocol(name)) {
			return fmt.Errorf("-protocols: there is no %q, only %v", name, protocols)
		}
		for _, n := range counts {
			p.loads = append(p.loads, load{protocol(name), n, rate}, load{protocol(name), n, 0})
		}
	}
	p.stepLoads = []load{{http1, 1, 0}, {http1, 16, rate}, {http1, 16, 0}}
	return nil
}

func numbers(name, list string) ([]int, error) {
	var all []int
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is not a number of at least 1", name, text)
		}
		all = append(all, n)
	}
	return all, nil
}

// run measures everything and prints the tables. What has been measured is written even if
// something fails.
func run(ctx context.Context, p *plan) error {
	results, err := measure(ctx, p, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if results == nil {
		return err
	}
	fmt.Print(tables(results))
	if p.json != "" {
		text, failed := json.MarshalIndent(results, "", "  ")
		if failed == nil {
			failed = os.WriteFile(p.json, append(text, '\n'), 0o644)
		}
		err = errors.Join(err, failed)
	}
	return errors.Join(err, results.failures())
}

func measure(ctx context.Context, p *plan, say func(string, ...any)) (results *Results, err error) {
	if err := lab.Available(); err != nil {
		return nil, err
	}
	// The thread that keeps the rate sleeps in the kernel, which should not take one of the
	// others' places.
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	dir, err := os.MkdirTemp("", "outrigger-dataplane-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{dir: dir, threads: p.threads, say: say, inspect: p.inspect}
	if b.programs, err = localmesh.BuildPrograms(ctx, dir, ""); err != nil {
		return nil, err
	}
	for _, class := range p.classes {
		if missing := b.programs.Missing[class]; missing != nil {
			say("SKIPPED: %s: %v", class, missing)
			continue
		}
		if b.programs.Proxies[class] == "" {
			return nil, fmt.Errorf("-classes: there is no class %q with a proxy", class)
		}
		b.classes = append(b.classes, class)
	}
	if len(b.classes) == 0 {
		return nil, errors.New("there is no proxy to measure; 'make proxies' installs Envoy and HAProxy")
	}
	results = &Results{Threads: p.threads}
	if results.Machine, err = machine(ctx, b); err != nil {
		return nil, err
	}
	begun := time.Now()
	err = b.measure(ctx, p, results)
	results.Machine.LoadAfter = loadAverage()
	results.Took = time.Since(begun)
	return results, err
}

func (b *bench) measure(ctx context.Context, p *plan, results *Results) (err error) {
	if results.Programs, err = b.sizes(); err != nil {
		return err
	}
	if slices.Contains(p.parts, partPairs) {
		if err := b.pairs(ctx, p.loads, p.timing, func(rows []Latency) { results.Pairs = append(results.Pairs, rows...) }); err != nil {
			return fmt.Errorf("measuring pairs: %w", err)
		}
	}
	if slices.Contains(p.parts, partSteps) {
		t := p.timing
		t.rounds *= 2
		for _, class := range b.classes {
			if err := b.decompose(ctx, class, p.stepLoads, t, func(rows []Step) { results.Steps = append(results.Steps, rows...) }); err != nil {
				return fmt.Errorf("measuring the steps of %s: %w", class, err)
			}
		}
	}
	if slices.Contains(p.parts, partMemory) {
		for _, m := range p.modes {
			for _, services := range p.services {
				if err := b.footprints(ctx, m, services, p.settle, func(rows []Footprint) { results.Memory = append(results.Memory, rows...) }); err != nil {
					return fmt.Errorf("measuring memory: %w", err)
				}
			}
		}
	}
	if slices.Contains(p.parts, partStart) {
		if err := b.starts(ctx, p.starts, func(rows []Start) { results.Starts = append(results.Starts, rows...) }); err != nil {
			return fmt.Errorf("measuring starts: %w", err)
		}
	}
	if slices.Contains(p.parts, partEffect) {
		if err := b.effects(ctx, p.starts, func(rows []Effect) { results.Effects = append(results.Effects, rows...) }); err != nil {
			return fmt.Errorf("measuring the time to effect: %w", err)
		}
	}
	return nil
}

// writePage writes the results in a file into a page.
func writePage(to string, files []string) error {
	if len(files) != 1 {
		return fmt.Errorf("-page needs one file with results, not %d", len(files))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	results := new(Results)
	if err := json.Unmarshal(text, results); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(files[0]), err)
	}
	return page.Write(to, tables(results))
}
