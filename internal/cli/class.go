package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/classmove"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

func newClassCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "class",
		Short: "Move pods from one kind of proxy to another",
		Long: `Move pods from one kind of proxy to another.

A sidecar class is a kind of proxy, such as envoy or haproxy.`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newClassMoveCommand())
	return cmd
}

// classMoveFlags are the flags of 'outrigger class move'.
type classMoveFlags struct {
	proxyFlags
	move                    classmove.Move
	limits                  classmove.Limits
	failed                  float64
	window                  time.Duration
	dryRun, accept, unwatch bool
}

func newClassMoveCommand() *cobra.Command {
	var f classMoveFlags
	cmd := &cobra.Command{
		Use:   "move --from CLASS --to CLASS",
		Short: "Replace the proxies of running pods by those of another class",
		Long: `Replace the proxies of running pods by those of another class.

The command first says what the other class lacks that policies of these pods ask for. If
that is anything, it changes nothing, unless --accept-lacks is given. Then it changes the
default class in the MeshConfig and the annotations ` + metadata.Class + `
of namespaces and pod templates that name the former class. With --namespace it changes
only these namespaces. It restarts Deployments, StatefulSets and DaemonSets as 'kubectl
rollout restart' does: the smallest one first and alone, then --pace at a time, and none
that could make more pods unavailable than its PodDisruptionBudgets allow. Pods without
such a controller are named and not touched.

Meanwhile it compares the requests to each namespace with those before: the share that
fails, and the p95 of their times. If they get worse, it changes everything back. If a
workload makes no progress for --no-progress, only its namespace goes back. A namespace in
which new pods could not start with the other class keeps its class. At the end it asks
every pod for the class of its annotation, the images of its sidecar, and the proxy's
connection to the controller.

After Ctrl-C, the same command continues. With --from and --to exchanged it goes back; it
then moves all pods of that class, whatever they had before. If nothing is left to be
done, it changes nothing. 'helm upgrade' and 'outrigger upgrade' set the default class of
the chart again: set osm.sidecarClass there, too.

The user needs the rights to change the MeshConfig, namespaces and workloads, and those of
'outrigger proxy list'.

Exit codes: 0 no pod has the former class, 1 some have or something failed, or it went
back, 2 wrong usage, 3 it was refused because of what the other class lacks.`,
		Example: `  # what would change, and what does HAProxy lack?
  outrigger class move --from envoy --to haproxy --dry-run

  # one namespace first, then the whole mesh
  outrigger class move --from envoy --to haproxy -n shop
  outrigger class move --from envoy --to haproxy --pace 5

  # and back
  outrigger class move --from haproxy --to envoy`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(); err != nil {
				return err
			}
			result, err := f.run(cmd)
			if result == nil {
				return err
			}
			var failed error
			if f.output != "" {
				failed = usage.PrintAs(cmd.OutOrStdout(), f.output, result)
			} else {
				printMove(cmd.OutOrStdout(), result)
			}
			switch {
			case err != nil || failed != nil:
				return errors.Join(err, failed)
			case result.Outcome == classmove.Refused || f.dryRun && len(result.Lacks) > 0 && !f.accept:
				return errRefused
			case !result.IsComplete():
				return errReported
			}
			return nil
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	flags.StringVar(&f.mesh.Name, "mesh-name", "osm", "name of the mesh, the value of the label "+metadata.MonitoredBy)
	flags.StringVar(&f.mesh.Revision, "revision", "default", "revision of the injector of namespaces and pods that choose none")
	f.mesh.addConfig(flags)
	f.addMesh(flags)
	flags.StringVar(&f.move.From, "from", "", "class that the pods have")
	flags.StringVar(&f.move.To, "to", "", "class that they get")
	flags.StringSliceVarP(&f.move.Namespaces, "namespace", "n", nil, "only this namespace; may be given several times; the default is all of the mesh, and its default class")
	flags.IntVar(&f.limits.Pace, "pace", 3, "how many workloads are restarted at a time, after the first one alone")
	flags.DurationVar(&f.limits.Patience, "no-progress", 5*time.Minute, "how long a workload may make no progress before its namespace goes back")
	flags.DurationVar(&f.window, "window", 10*time.Second, "how long requests are counted for one measurement")
	flags.Float64Var(&f.failed, "max-failed", 1, "how much more of the requests may fail than before, in percent of all")
	flags.Float64Var(&f.limits.Slower, "max-slower", 3, "how many times the p95 before the move the p95 may be; at least 100ms more are allowed")
	flags.BoolVar(&f.unwatch, "skip-metrics", false, "do not measure the traffic, and go back only if workloads make no progress")
	flags.BoolVar(&f.accept, "accept-lacks", false, "move although the other class lacks what policies ask for")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say what would be changed, and change nothing")
	flags.StringVarP(&f.output, "output", "o", "", "format: json or yaml; the default is text")
	f.kube.complete(cmd)
	completeValues(cmd, "from", sidecar.Drivers()...)
	completeValues(cmd, "to", sidecar.Drivers()...)
	completeValues(cmd, "output", "json", "yaml")
	return cmd
}

// complete checks the flags.
func (f *classMoveFlags) complete() error {
	for _, flag := range []struct {
		name  string
		class *string
	}{{"--from", &f.move.From}, {"--to", &f.move.To}} {
		*flag.class = strings.ToLower(*flag.class)
		switch {
		case *flag.class == "":
			return usage.Errorf("give the class with %s; classes are %s", flag.name, strings.Join(sidecar.Drivers(), ", "))
		case !slices.Contains(sidecar.Drivers(), *flag.class):
			return usage.Errorf("%s %q: this class does not exist%s; classes are %s", flag.name, *flag.class, suggestion(*flag.class, sidecar.Drivers()), strings.Join(sidecar.Drivers(), ", "))
		}
	}
	f.limits.Failed = f.failed / 100
	slices.Sort(f.move.Namespaces)
	f.move.Namespaces = slices.Compact(f.move.Namespaces)
	switch {
	case f.move.From == f.move.To:
		return usage.Errorf("--from and --to are both %s", f.move.To)
	case f.limits.Pace < 1:
		return usage.Errorf("--pace %d: give a number of workloads, at least 1", f.limits.Pace)
	case f.limits.Patience < time.Second:
		return usage.Errorf("--no-progress %s: give a time such as 5m", f.limits.Patience)
	case f.window < time.Second || f.window > debug.MaxPeriod:
		return usage.Errorf("--window %s: give a time from 1s to %s", f.window, debug.MaxPeriod)
	case f.failed < 0 || f.failed > 100:
		return usage.Errorf("--max-failed %g: give a number from 0 to 100", f.failed)
	case f.limits.Slower < 1:
		return usage.Errorf("--max-slower %g: give a number from 1", f.limits.Slower)
	case !slices.Contains([]string{"", "json", "yaml"}, f.output):
		return usage.Errorf("-o %q: formats are json and yaml", f.output)
	}
	for _, namespace := range f.move.Namespaces {
		if inject.NamespaceExempt(namespace, f.mesh.Namespace) {
			return usage.Errorf("namespace %s belongs to Kubernetes or to the control plane, and cannot be in a mesh", namespace)
		}
	}
	return f.check()
}

// run runs the move. The Result is nil if it could not begin.
func (f *classMoveFlags) run(cmd *cobra.Command) (*classmove.Result, error) {
	config, err := f.kube.burstConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	c, err := newCluster(f.kube, f.mesh)
	if err != nil {
		return nil, err
	}
	reading := snapshotFlags{engine: engineFlags{kube: f.kube, mesh: f.mesh}, timeout: time.Minute}
	facts, err := reading.clusterFacts(cmd)
	if err != nil {
		return nil, err
	}
	options := classmove.Options{
		Move: f.move, Limits: f.limits, DryRun: f.dryRun, AcceptLacks: f.accept,
		Cluster: &classmove.Cluster{
			Kube: client, MeshConfigs: c.client, MeshName: f.mesh.Name,
			MeshConfig: types.NamespacedName{Namespace: f.mesh.Namespace, Name: f.mesh.Config},
		},
		Lacks:    classmove.Lacks(facts, f.move, catalog.Options{Features: sidecar.Features, Proxyless: sidecar.IsProxyless}),
		Deciding: f.deciding(cmd.Context()),
		Proxies:  f.proxies,
		Interval: time.Second, Settle: 2 * time.Minute,
		Progress: func(text string) {
			terminal.Fprintf(cmd.ErrOrStderr(), "%s %s\n", time.Now().Format(time.TimeOnly), text)
		},
	}
	if !f.unwatch {
		options.Traffic = f.traffic
	}
	if f.output == "" {
		for _, p := range options.Lacks {
			terminal.Fprintln(cmd.ErrOrStderr(), "lacking:", p)
		}
	}
	result, err := classmove.Run(cmd.Context(), options)
	if err != nil && cmd.Context().Err() != nil {
		err = fmt.Errorf("interrupted; to continue, run the same command again, and to go back: outrigger class move --from %s --to %s", f.move.To, f.move.From)
	}
	return result, err
}

// traffic reads what the proxies count during the window.
func (f *classMoveFlags) traffic(ctx context.Context) (*traffic.Report, error) {
	flags := trafficFlags{proxyFlags: f.proxyFlags}
	return flags.report(ctx, f.window)
}

// proxies lists the connected proxies.
func (f *classMoveFlags) proxies(ctx context.Context) ([]registry.Proxy, error) {
	listed, err := f.list(ctx)
	proxies := make([]registry.Proxy, 0, len(listed))
	for i := range listed {
		proxies = append(proxies, listed[i].Proxy)
	}
	return proxies, err
}

// deciding returns what injection decides, by the same engine as the injector's. Each revision
// has its own.
func (f *classMoveFlags) deciding(ctx context.Context) classmove.Deciding {
	return func(meshConfig *v1alpha2.MeshConfig, namespaces []corev1.Namespace) (classmove.Decide, error) {
		known := make(map[string]*inject.Namespace, len(namespaces))
		engines := make(map[string]*inject.Injector)
		build := func(revision string) error {
			if engines[revision] != nil {
				return nil
			}
			flags := engineFlags{kube: f.kube, mesh: f.mesh, fromCluster: true, problems: io.Discard, known: known, found: meshConfig}
			flags.mesh.Revision = revision
			engine, err := flags.build(ctx, nil)
			engines[revision] = engine
			return err
		}
		for i := range namespaces {
			known[namespaces[i].Name] = inject.NamespaceOf(&namespaces[i])
		}
		return func(pod *corev1.Pod) classmove.Decision {
			revision := cmp.Or(pod.Labels[metadata.Revision], known[pod.Namespace].Labels[metadata.Revision], f.mesh.Revision)
			err := build(revision)
			var raw []byte
			if err == nil {
				raw, err = json.Marshal(pod)
			}
			if err != nil {
				return classmove.Decision{Denied: true, Reason: err.Error()}
			}
			result := engines[revision].Inject(ctx, inject.Request{Namespace: pod.Namespace, Pod: raw, DryRun: true})
			return classmove.Decision{
				Class: result.Class, Image: result.Image,
				Denied: result.Decision.Outcome == inject.Deny, Reason: result.Decision.Message,
			}
		}, nil
	}
}

// printMove writes the result for people.
func printMove(w io.Writer, r *classmove.Result) {
	for _, c := range r.Changes {
		terminal.Fprintln(w, "change:", c)
	}
	for _, l := range r.Workloads {
		line := fmt.Sprintf("%s: %d pods: %s", l.Key, l.Pods, l.State)
		if l.Image != "" {
			line += ", image " + l.Image
		}
		if l.Reason != "" {
			line += ": " + l.Reason
		}
		terminal.Fprintln(w, line)
	}
	for _, l := range r.Namespaces {
		terminal.Fprintf(w, "kept: %s: %s\n", l.Object, l.Reason)
	}
	for _, l := range r.Left {
		terminal.Fprintf(w, "left: %s: %s\n", l.Object, l.Reason)
	}
	for _, m := range r.Measured {
		printMeasured(w, m)
	}
	if p := r.Proof; p != nil {
		for _, l := range p.Old {
			terminal.Fprintf(w, "former class: %s: %s\n", l.Object, l.Reason)
		}
		for _, l := range p.Unproven {
			terminal.Fprintf(w, "not proven: %s: %s\n", l.Object, l.Reason)
		}
		terminal.Fprintf(w, "%d pods were asked; by annotation: %s; connected: %s\n", p.Pods, counted(p.Classes), counted(p.Connected))
	}
	line := fmt.Sprintf("%s: class %s to %s", r.Outcome, r.From, r.To)
	if r.Reason != "" {
		line += ": " + r.Reason
	}
	terminal.Fprintln(w, line)
}

// printMeasured writes what was measured of a namespace before and last.
func printMeasured(w io.Writer, m classmove.Measured) {
	at := cmp.Or(m.Before, m.Last).At
	text := func(m *classmove.Measure) string {
		if m == nil {
			return "no requests"
		}
		p95 := "-"
		if m.P95 != nil {
			p95 = fmt.Sprintf("%.0f ms", 1000**m.P95)
		}
		return fmt.Sprintf("%.0f requests, %.0f failed, p95 %s", m.Requests, m.Failed, p95)
	}
	terminal.Fprintf(w, "namespace %s, counted by its %s: before %s; last %s\n", at.Namespace, at.By, text(m.Before), text(m.Last))
}

// counted returns counts by name.
func counted(counts map[string]int) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		texts = append(texts, fmt.Sprintf("%d %s", counts[name], name))
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}
