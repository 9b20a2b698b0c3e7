package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/accesslog"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// lookAgain is how often new pods are looked for.
	lookAgain = 5 * time.Second
	// hintAfter is how long nothing may be printed before the command says why that may be.
	hintAfter = 10 * time.Second
)

// tapFlags are the flags of 'outrigger tap'.
type tapFlags struct {
	accessLogFlags
	max    int
	since  time.Duration
	follow bool
}

func newTapCommand() *cobra.Command {
	var f tapFlags
	cmd := &cobra.Command{
		Use:   "tap [POD | TYPE/NAME | NAMESPACE/POD]...",
		Short: "Show the requests and connections of pods, live",
		Long: `Show the requests and connections of pods, live.

Each line is one request or TCP connection that a sidecar has finished: when it began, the
pod, the other end, what was asked, the answer, and, if the sidecar has refused it, the
reason. An arrow shows whether the pod was the caller or was called. Without an argument all
pods of the namespace are shown that have a sidecar, also those that start later. Other ends
are shown by their verified identity, or by their address if they have none.

The command reads the access logs of the sidecars through the API server. It needs the right
to get pods/log, and nothing is restarted. Only what the access log contains can be shown:
see 'spec.observability.accessLog' of the MeshConfig and the annotation
openservicemesh.io/access-log of namespaces and pods.

To see a demo, give its --debug-address, without --kubeconfig and --context.

The command ends with Ctrl-C, after --max lines, or, with --follow=false, when what was logged
so far has been read.

Exit codes: 0 it was ended, or has shown everything, 1 something failed, 2 wrong usage.`,
		Example: `  # everything that happens at the pods of a Deployment
  outrigger tap deploy/cart -n shop

  # what sidecars refuse in a namespace, and why
  outrigger tap -n shop --refused

  # errors of the last ten minutes that one client got
  outrigger tap svc/cart -n shop --from web/frontend --status 5xx --since 10m --follow=false

  # one request at both ends
  outrigger tap -A --request-id 999c3d09-a433-4384-9c6a-9fd8772805c2 --since 1h`,
		ValidArgsFunction: f.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkTap(cmd.CommandPath(), args); err != nil {
				return err
			}
			client, err := f.client()
			if err != nil {
				return err
			}
			return f.tap(cmd.Context(), client, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	f.addPods(flags)
	f.addAddress(flags)
	flags.StringSliceVar(&f.filter.Codes, "status", nil, "status codes, or classes of them such as 5xx")
	flags.StringVar(&f.filter.Method, "method", "", "method of the requests")
	flags.StringVar(&f.filter.Path, "path", "", "beginning of the requests' path")
	flags.StringVar(&f.filter.From, "from", "", "only what this identity has sent to the pods: NAMESPACE or NAMESPACE/SERVICEACCOUNT")
	flags.StringVar(&f.filter.To, "to", "", "only what the pods have sent to this identity: NAMESPACE or NAMESPACE/SERVICEACCOUNT")
	flags.BoolVar(&f.filter.Refused, "refused", false, "only what sidecars have refused")
	flags.StringVar(&f.filter.Reason, "reason", "", "only what was refused for this reason, for example access; docs/observe.md lists them")
	flags.IntVar(&f.max, "max", 0, "how many lines to show; 0 means no limit")
	flags.DurationVar(&f.since, "since", 0, "also show what was logged since then, for example 10m")
	flags.BoolVarP(&f.follow, "follow", "f", true, "keep showing new lines")
	flags.StringVarP(&f.output, "output", "o", "", "format: wide or json (the sidecars' own lines, with the pod); the default is text")
	completeValues(cmd, "output", "wide", "json")
	f.kube.complete(cmd)
	return cmd
}

func (f *tapFlags) checkTap(command string, args []string) error {
	if err := f.checkPods(command, args); err != nil {
		return err
	}
	switch {
	case f.max < 0 || f.since < 0:
		return usage.Errorf("%s: --max and --since must not be negative", command)
	case f.output != "" && f.output != "wide" && f.output != "json":
		return usage.Errorf("%s: -o %s: formats are wide and json", command, f.output)
	case !f.follow && f.since == 0:
		// Everything that there is.
		f.since = -1
	}
	if err := f.filter.Check(); err != nil {
		return usage.Error{Err: err}
	}
	return nil
}

// tap prints the lines of the arguments' pods until ctx ends, or there are no more.
func (f *tapFlags) tap(ctx context.Context, client kubernetes.Interface, args []string, out, warnings io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t := &tap{flags: f, client: client, out: out, warnings: warnings, stop: stop, known: make(map[types.UID]string)}
	pods, err := f.firstPods(ctx, client, args)
	if err != nil {
		return err
	}
	if len(pods) == 0 && !f.follow {
		return errNoPods
	}
	t.warn("reading the access logs of %d pods", len(pods))
	t.read(ctx, pods, f.since)
	if !f.follow {
		t.reading.Wait()
		return t.failed(ctx)
	}
	hint := time.After(hintAfter)
	for {
		select {
		case <-ctx.Done():
			t.reading.Wait()
			return t.failed(ctx)
		case <-hint:
			t.hint()
		case <-time.After(lookAgain):
			pods, err := f.pods(ctx, client, args)
			if err != nil {
				if ctx.Err() == nil {
					t.warn("warning: looking for new pods: %v", err)
				}
				continue
			}
			// All lines of a new pod are new, and those of a container that has restarted.
			t.read(ctx, pods, -1)
		}
	}
}

// tap is the state of a running 'outrigger tap'.
type tap struct {
	flags         *tapFlags
	client        kubernetes.Interface
	out, warnings io.Writer
	stop          func()
	reading       sync.WaitGroup
	// known has the pods whose logs are read or were, with the ID of the container.
	known map[types.UID]string

	mu sync.Mutex
	// lines counts those that were read, and shown those that were selected.
	lines, shown int
	err          error
}

// read begins to read the logs of pods that are not known, or whose sidecar has restarted.
// Lines are not older than since; 0 means only new ones, and a negative value all.
func (t *tap) read(ctx context.Context, pods []corev1.Pod, since time.Duration) {
	for i := range pods {
		pod := &pods[i]
		id := proxyID(pod)
		// A container that has not started has no ID.
		if id == "" || id == t.known[pod.UID] {
			continue
		}
		t.known[pod.UID] = id
		if len(t.known) > maxLogs {
			t.warn("warning: pod %s is not shown: the logs of %d pods are read already", nameOf(pod), maxLogs)
			continue
		}
		t.reading.Go(func() {
			if err := t.readPod(ctx, pod, since); err != nil && ctx.Err() == nil {
				t.warn("warning: %v", err)
				t.mu.Lock()
				defer t.mu.Unlock()
				t.err = errors.Join(t.err, err)
			}
		})
	}
}

// warn writes a line for the user beside the output.
func (t *tap) warn(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	terminal.Fprintf(t.warnings, format+"\n", args...)
}

// proxyID returns the ID of the container in which a pod's sidecar runs, or "".
func proxyID(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.Name == driver.ProxyContainer {
			return s.ContainerID
		}
	}
	return ""
}

func (t *tap) readPod(ctx context.Context, pod *corev1.Pod, since time.Duration) error {
	options := &corev1.PodLogOptions{Follow: t.flags.follow}
	switch {
	case since > 0:
		options.SinceSeconds = secondsOf(since)
	case since == 0:
		options.TailLines = new(int64(0))
	}
	return eachLine(ctx, t.client, pod, options, func(line accesslog.Line, text []byte) bool { return t.show(pod, line, text) })
}

// show prints a line if it is selected. It reports whether there may be more.
func (t *tap) show(pod *corev1.Pod, line accesslog.Line, raw []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines++
	if t.flags.max > 0 && t.shown >= t.flags.max {
		return false
	}
	if !t.flags.filter.Selects(line) {
		return true
	}
	t.shown++
	if err := t.print(pod, line, raw); err != nil {
		t.err = errors.Join(t.err, err)
		t.stop()
		return false
	}
	if t.flags.max > 0 && t.shown >= t.flags.max {
		t.stop()
		return false
	}
	return true
}

func (t *tap) print(pod *corev1.Pod, line accesslog.Line, raw []byte) error {
	if t.flags.output == "json" {
		// The raw line has been parsed, so it is an object.
		e := json.NewEncoder(t.out)
		e.SetEscapeHTML(false)
		return e.Encode(podLine{nameOf(pod), raw})
	}
	text := textOf(pod, line)
	if t.flags.output == "wide" {
		text += " flags=" + cmp.Or(terminal.Word(line.Flags), "-") + " request-id=" + cmp.Or(terminal.Word(line.RequestID), "-")
	}
	_, err := terminal.Fprintln(t.out, text)
	return err
}

// podLine is a line of the output of -o json: a sidecar's own line, with the pod.
type podLine struct {
	Pod  string          `json:"pod"`
	Line json.RawMessage `json:"line"`
}

// hint says why nothing was shown, if so.
func (t *tap) hint() {
	t.mu.Lock()
	lines, shown := t.lines, t.shown
	t.mu.Unlock()
	switch {
	case shown > 0:
	case lines > 0:
		t.warn("%d requests and connections were logged, and none of them is selected", lines)
	case len(t.known) == 0:
		t.warn("no running pod has a sidecar yet")
	default:
		t.warn("nothing was logged yet: there were no requests, or the access log is limited by spec.observability.accessLog of the MeshConfig or the annotation %s of the pods or their namespace", metadata.AccessLog)
	}
}

// failed returns the error after everything was read. A log that could not be read is one, but
// not if the user has ended the command.
func (t *tap) failed(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil && t.flags.follow {
		return nil
	}
	if t.err != nil {
		return errors.New("not all access logs could be read; see the warnings above")
	}
	return nil
}
