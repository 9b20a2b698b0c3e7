package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/accesslog"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func newWhyCommand() *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:   "why [POD | TYPE/NAME | NAMESPACE/POD]...",
		Short: "Explain why requests to or from pods have failed",
		Long: `Explain why requests to or from pods have failed.

The command reads the access logs of the pods' sidecars of the last --since, and shows what
has failed: what a sidecar has refused, answers with a status of 500 or more, and requests
without an answer. It also shows connections to HTTP ports whose clients have waited silently,
as they do if the server speaks first in their protocol. Equal ones are one line. Below is why: the reason that the sidecar has
logged; if it was the client's, what the sidecar of the server has logged about the same
request; if access was refused, what 'outrigger explain' says about it now; and whether a
proxy lacks its configuration or has rejected it. Without an argument it reads all pods of
the namespace.

It needs the right to get pods/log, and for what the controller knows that of 'outrigger
proxy list'; without the latter the rest is shown. Access logs that are limited
(spec.observability.accessLog) have at least the errors, unless they are off.

To see a demo, give its --debug-address, without --kubeconfig and --context.

Exit codes: 0 nothing has failed, 1 not everything could be read, 2 wrong usage, 3
something has failed.`,
		Example: `  outrigger why deploy/cart -n shop

  # one request, at all pods that had to do with it
  outrigger why -A --request-id 999c3d09-a433-4384-9c6a-9fd8772805c2 --since 1h`,
		ValidArgsFunction: f.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkPods(cmd.CommandPath(), args); err != nil {
				return err
			}
			if f.since <= 0 || f.max <= 0 {
				return usage.Errorf("%s: --since and --max must be positive", cmd.CommandPath())
			}
			client, err := f.client()
			if err != nil {
				return err
			}
			w := &why{flags: &f, client: client, out: cmd.OutOrStdout(), warnings: cmd.ErrOrStderr()}
			return w.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	f.addPods(flags)
	f.addMesh(flags)
	flags.DurationVar(&f.since, "since", 10*time.Minute, "how far to look back")
	flags.IntVar(&f.max, "max", 10, "how many failures to show, the newest first")
	f.kube.complete(cmd)
	return cmd
}

// whyFlags are the flags of 'outrigger why'.
type whyFlags struct {
	accessLogFlags
	since time.Duration
	max   int
}

// why is a running 'outrigger why'.
type why struct {
	flags         *whyFlags
	client        kubernetes.Interface
	out, warnings io.Writer
	// incomplete says that something could not be read.
	incomplete bool
	logs       map[string][]accesslog.Line
}

// failure is what has failed, or may have, in the same way.
type failure struct {
	pod      *corev1.Pod
	outbound bool
	last     accesslog.Line
	count    int
}

func (w *why) run(ctx context.Context, args []string) error {
	pods, err := w.flags.firstPods(ctx, w.client, args)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return errNoPods
	}
	w.logs = make(map[string][]accesslog.Line)
	lines := w.readAll(ctx, pods)
	failures := w.failures(pods)
	shown := failures[:min(len(failures), w.flags.max)]
	for _, f := range shown {
		terminal.Fprintln(w.out, w.title(f))
		for _, because := range w.because(ctx, f) {
			terminal.Fprintln(w.out, "    "+because)
		}
	}
	if more := len(failures) - len(shown); more > 0 {
		terminal.Fprintf(w.out, "and %d other kinds of failures; see them with --max\n", more)
	}
	w.proxies(ctx, pods)
	if slices.ContainsFunc(failures, func(f *failure) bool { return f.last.Failed() }) {
		return errRefused
	}
	nothing := "nothing has failed"
	if len(failures) > 0 {
		nothing = "nothing else has failed"
	}
	if w.incomplete {
		return errors.New(nothing + " in what could be read; see the warnings above")
	}
	terminal.Fprintf(w.out, nothing+" in %s (pods: %d, requests and connections: %d)\n", w.flags.since, len(pods), lines)
	return nil
}

func (w *why) warn(format string, args ...any) {
	w.incomplete = true
	terminal.Fprintf(w.warnings, "warning: "+format+"\n", args...)
}

// readAll reads the access logs of pods, and returns how many lines there are.
func (w *why) readAll(ctx context.Context, pods []corev1.Pod) int {
	var group errgroup.Group
	group.SetLimit(8)
	var mu sync.Mutex
	count := 0
	for i := range pods {
		group.Go(func() error {
			lines, err := w.read(ctx, &pods[i])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				w.warn("%v", err)
			}
			w.logs[nameOf(&pods[i])] = lines
			count += len(lines)
			return nil
		})
	}
	_ = group.Wait()
	return count
}

// read returns the lines of a pod's access log, those before an error too.
func (w *why) read(ctx context.Context, pod *corev1.Pod) ([]accesslog.Line, error) {
	var lines []accesslog.Line
	err := eachLine(ctx, w.client, pod, &corev1.PodLogOptions{SinceSeconds: secondsOf(w.flags.since)}, func(line accesslog.Line, _ []byte) bool {
		lines = append(lines, line)
		return true
	})
	return lines, err
}

// failures returns what has failed, the newest first. If one request was asked for, they are
// all its lines.
func (w *why) failures(pods []corev1.Pod) []*failure {
	type kind struct {
		pod      string
		outbound bool
		line     accesslog.Line
	}
	found := make(map[kind]*failure)
	for i := range pods {
		pod := &pods[i]
		for _, line := range w.logs[nameOf(pod)] {
			if !w.flags.filter.Selects(line) || !line.Failed() && !line.Silent {
				continue
			}
			outbound := line.IsFrom(addressesOf(pod))
			of := kind{nameOf(pod), outbound, kindOf(line)}
			f := found[of]
			if f == nil {
				f = &failure{pod: pod, outbound: outbound}
				found[of] = f
			}
			f.count++
			if !line.Start.Before(f.last.Start) {
				f.last = line
			}
		}
	}
	out := make([]*failure, 0, len(found))
	for _, f := range found {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *failure) int {
		return cmp.Or(b.last.Start.Compare(a.last.Start), strings.Compare(nameOf(a.pod), nameOf(b.pod)), strings.Compare(a.last.Path, b.last.Path))
	})
	return out
}

// kindOf returns what equal failures have in common.
func kindOf(l accesslog.Line) accesslog.Line {
	path, _, _ := strings.Cut(l.Path, "?")
	out := accesslog.Line{Method: l.Method, Path: path, Authority: l.Authority, Code: l.Code, Reason: l.Reason, Silent: l.Silent, Client: l.Client, Server: l.Server, Destination: l.Destination}
	if l.Client == (mesh.Identity{}) {
		// The port of a connection is its own.
		out.Caller = l.Caller[:max(strings.LastIndexByte(l.Caller, ':'), 0)]
	}
	return out
}

// title is the line about a failure.
func (w *why) title(f *failure) string {
	times := ""
	if f.count > 1 {
		times = fmt.Sprintf(" (%d times, the last one is shown)", f.count)
	}
	return textOf(f.pod, f.last) + times
}

// because returns why it has failed, one sentence per line.
func (w *why) because(ctx context.Context, f *failure) []string {
	line := f.last
	switch {
	case line.IsNotHTTP():
		return w.notHTTP(ctx, f)
	case line.Silent:
		return w.silent(ctx, f)
	case line.Reason != "":
		return append([]string{fmt.Sprintf("The sidecar of %s has refused it: %s.", nameOf(f.pod), line.Meaning())}, w.explained(ctx, f.pod, line, f.outbound)...)
	case f.outbound && line.Host != "":
		return w.atServer(ctx, line)
	case f.outbound:
		return []string{"Its own sidecar had no answer: no server was reached (" + cmp.Or(line.Flags, "no flags") + ")."}
	case line.Code == 0:
		return []string{"There was no answer: the client or the application has closed the connection (" + cmp.Or(line.Flags, "no flags") + ")."}
	}
	return []string{fmt.Sprintf("The sidecar has let it through, and the application of %s has answered %d, or could not be reached (%s).", nameOf(f.pod), line.Code, cmp.Or(line.Flags, "no flags"))}
}

// atServer explains a client's failure by the log of the server.
func (w *why) atServer(ctx context.Context, line accesslog.Line) []string {
	address := strings.Trim(line.Host[:max(strings.LastIndexByte(line.Host, ':'), 0)], "[]")
	pods, err := w.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.podIP=" + address})
	if err != nil {
		w.warn("finding the pod at %s: %v", address, err)
		return []string{"It was sent to " + line.Host + "."}
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return hasProxy(&p) })
	if i < 0 {
		return []string{fmt.Sprintf("It was sent to %s, where no pod with a sidecar is any more, so that end is not known.", line.Host)}
	}
	pod := &pods.Items[i]
	lines, known := w.logs[nameOf(pod)]
	if !known {
		if lines, err = w.read(ctx, pod); err != nil {
			w.warn("%v", err)
		}
		w.logs[nameOf(pod)] = lines
	}
	sent := fmt.Sprintf("It was sent to pod %s.", nameOf(pod))
	// The last ones are the most likely ones.
	for _, there := range slices.Backward(lines) {
		if there.IsFrom(addressesOf(pod)) || !there.Same(line) {
			continue
		}
		if there.Reason == "" {
			return []string{sent, fmt.Sprintf("Its sidecar has let it through, and the application has answered %d, or could not be reached (%s).", there.Code, cmp.Or(there.Flags, "no flags"))}
		}
		return append([]string{sent, fmt.Sprintf("Its sidecar has refused it: %s.", there.Meaning())}, w.explained(ctx, pod, there, false)...)
	}
	return []string{sent, "Its sidecar has no line about it: it did not arrive, or the access log there is off."}
}

// explained returns what the policies say now about a request whose access was refused.
func (w *why) explained(ctx context.Context, pod *corev1.Pod, line accesslog.Line, outbound bool) []string {
	if outbound || !line.IsAccess() || line.Client == (mesh.Identity{}) {
		return nil
	}
	from := mesh.Name{Namespace: line.Client.Namespace, Name: line.Client.ServiceAccount}.String()
	path, _, _ := strings.Cut(line.Path, "?")
	answer, err := w.askController(ctx, debug.ExplainQuery(from, nameOf(pod), line.Method, path))
	if err != nil {
		return []string{fmt.Sprintf("The controller does not explain it: %v.", err)}
	}
	var explanation explain.Explanation
	if err := json.Unmarshal(answer, &explanation); err != nil {
		return []string{fmt.Sprintf("The controller does not explain it: %v.", err)}
	}
	if explanation.Verdict == explain.Allowed {
		return []string{"The policies allow it now."}
	}
	var out []string
	for _, step := range explanation.Steps {
		if step.Verdict == "" {
			continue
		}
		out = append(out, step.Text)
		for _, detail := range step.Details {
			out = append(out, "  "+detail)
		}
	}
	for _, p := range explanation.Problems {
		out = append(out, fmt.Sprintf("Problem of %s %s/%s: %s", p.Object.Kind, p.Object.Namespace, p.Object.Name, p.Message))
	}
	return out
}

func (w *why) askController(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, w.flags.timeout)
	defer cancel()
	return w.flags.askAny(ctx, path)
}

// proxies says which of the pods' proxies do not run their configuration.
func (w *why) proxies(ctx context.Context, pods []corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, w.flags.timeout)
	defer cancel()
	list, err := w.flags.list(ctx)
	if err != nil {
		w.warn("asking the controllers for the state of the proxies: %v", err)
	}
	for i := range pods {
		name := nameOf(&pods[i])
		at := slices.IndexFunc(list, func(p listedProxy) bool { return p.Name.String() == name })
		switch {
		case at < 0 && err != nil:
		case at < 0:
			terminal.Fprintf(w.out, "The proxy of %s is not connected to a controller, so it has an old configuration or none.\n", name)
		case list[at].Failure != nil:
			terminal.Fprintf(w.out, "The proxy of %s is failing: %s\n", name, list[at].Failure.Text())
		case list[at].State == registry.Rejected:
			for _, rejection := range list[at].Rejections {
				if rejection.LeftOut {
					terminal.Fprintf(w.out, "The proxy of %s runs without %s, which it has rejected: %s\n", name, strings.Join(rejection.Resources, ", "), rejection.Message)
					continue
				}
				terminal.Fprintf(w.out, "The proxy of %s runs an old configuration, because it has rejected %s: %s\n", name, strings.Join(rejection.Resources, ", "), rejection.Message)
			}
		case list[at].State == registry.Empty:
			terminal.Fprintf(w.out, "The proxy of %s has no configuration.\n", name)
		}
	}
}
