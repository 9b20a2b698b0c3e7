package cli

import (
	"bufio"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/accesslog"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// maxTapped limits the pods whose logs are read at once: each is a connection to a kubelet.
	maxTapped = 100
	// lookAgain is how often new pods are looked for.
	lookAgain = 5 * time.Second
	// hintAfter is how long nothing may be printed before the command says why that may be.
	hintAfter = 10 * time.Second
	// maxLine bounds a line of a log, in bytes.
	maxLine = 1 << 20
)

// tapFlags are the flags of 'outrigger tap'.
type tapFlags struct {
	proxyFlags
	filter   accesslog.Filter
	selector string
	max      int
	since    time.Duration
	follow   bool
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
			client, err := f.kube.client()
			if err != nil {
				return err
			}
			return f.tap(cmd.Context(), client, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pods; the default is that of the kubeconfig's context")
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "pods of all namespaces")
	flags.StringVarP(&f.selector, "selector", "l", "", "labels of the pods, for example app=cart")
	flags.StringSliceVar(&f.filter.Codes, "status", nil, "status codes, or classes of them such as 5xx")
	flags.StringVar(&f.filter.Method, "method", "", "method of the requests")
	flags.StringVar(&f.filter.Path, "path", "", "beginning of the requests' path")
	flags.StringVar(&f.filter.From, "from", "", "only what this identity has sent to the pods: NAMESPACE or NAMESPACE/SERVICEACCOUNT")
	flags.StringVar(&f.filter.To, "to", "", "only what the pods have sent to this identity: NAMESPACE or NAMESPACE/SERVICEACCOUNT")
	flags.BoolVar(&f.filter.Refused, "refused", false, "only what sidecars have refused")
	flags.StringVar(&f.filter.Reason, "reason", "", "only what was refused for this reason, for example access; docs/access-logs.md lists them")
	flags.StringVar(&f.filter.RequestID, "request-id", "", "value of the header x-request-id")
	flags.IntVar(&f.max, "max", 0, "how many lines to show; 0 means no limit")
	flags.DurationVar(&f.since, "since", 0, "also show what was logged since then, for example 10m")
	flags.BoolVarP(&f.follow, "follow", "f", true, "keep showing new lines")
	flags.StringVarP(&f.output, "output", "o", "", "format: wide or json (the sidecars' own lines, with the pod); the default is text")
	completeValues(cmd, "output", "wide", "json")
	f.kube.complete(cmd)
	return cmd
}

func (f *tapFlags) checkTap(command string, args []string) error {
	switch {
	case f.max < 0 || f.since < 0:
		return usage.Errorf("%s: --max and --since must not be negative", command)
	case f.all && (f.namespace != "" || len(args) > 0):
		return usage.Errorf("%s: -A can't be combined with -n or with names of pods", command)
	case f.selector != "" && len(args) > 0:
		return usage.Errorf("%s: -l can't be combined with names of pods", command)
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
	t := &tap{flags: f, client: client, out: out, warnings: warnings, stop: stop, known: make(map[string]bool)}
	since := f.since
	pods, err := f.tapped(ctx, client, args)
	if err != nil {
		return err
	}
	if len(pods) == 0 && !f.follow {
		return errors.New("there are no running pods with a sidecar")
	}
	if len(pods) > maxTapped {
		return fmt.Errorf("%d pods have a sidecar, and the logs of at most %d can be read at once; name a workload, or select pods with -l", len(pods), maxTapped)
	}
	t.warn("reading the access logs of %d pods", len(pods))
	t.read(ctx, pods, since)
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
			pods, err := f.tapped(ctx, client, args)
			if err != nil {
				if ctx.Err() == nil {
					t.warn("warning: looking for new pods: %v", err)
				}
				continue
			}
			// All lines of a pod that is new are.
			t.read(ctx, pods, -1)
		}
	}
}

// tapped returns the running pods with a proxy that the arguments and flags select.
func (f *tapFlags) tapped(ctx context.Context, client kubernetes.Interface, args []string) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	if len(args) == 0 {
		namespace := f.namespace
		if namespace == "" && !f.all {
			var err error
			if namespace, err = f.kube.namespace(); err != nil {
				return nil, err
			}
		}
		var err error
		if pods, err = page.All[corev1.Pod](ctx, client.CoreV1().Pods(namespace).List, metav1.ListOptions{LabelSelector: f.selector}); err != nil {
			return nil, fmt.Errorf("listing the pods: %w", err)
		}
	}
	for _, arg := range args {
		target, err := f.target(arg)
		if err != nil {
			return nil, err
		}
		some, err := target.pods(ctx, client)
		if err != nil {
			return nil, err
		}
		pods = append(pods, some...)
	}
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning || !hasProxy(&p) }), nil
}

func hasProxy(pod *corev1.Pod) bool {
	isProxy := func(c corev1.Container) bool { return c.Name == driver.ProxyContainer }
	return slices.ContainsFunc(pod.Spec.Containers, isProxy) || slices.ContainsFunc(pod.Spec.InitContainers, isProxy)
}

// tap is the state of a running 'outrigger tap'.
type tap struct {
	flags         *tapFlags
	client        kubernetes.Interface
	out, warnings io.Writer
	stop          func()
	reading       sync.WaitGroup
	// known are the UIDs of pods whose logs are read or were.
	known map[string]bool

	mu sync.Mutex
	// lines counts those that were read, and shown those that were selected.
	lines, shown int
	err          error
}

// read begins to read the logs of pods that are not known. Lines are not older than since; 0
// means only new ones, and a negative value all.
func (t *tap) read(ctx context.Context, pods []corev1.Pod, since time.Duration) {
	for i := range pods {
		pod := &pods[i]
		if t.known[string(pod.UID)] {
			continue
		}
		if len(t.known) >= maxTapped {
			t.warn("warning: pod %s/%s is not shown: the logs of %d pods are read already", pod.Namespace, pod.Name, maxTapped)
		}
		t.known[string(pod.UID)] = true
		if len(t.known) > maxTapped {
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
	fmt.Fprintf(t.warnings, format+"\n", args...)
}

func (t *tap) readPod(ctx context.Context, pod *corev1.Pod, since time.Duration) error {
	options := &corev1.PodLogOptions{Container: driver.ProxyContainer, Follow: t.flags.follow}
	switch {
	case since > 0:
		options.SinceSeconds = new(int64(max(since.Seconds(), 1)))
	case since == 0:
		options.TailLines = new(int64(0))
	}
	stream, err := t.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("the access log of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if line, ok := accesslog.Parse(lines.Bytes()); ok && !t.show(pod, line, lines.Bytes()) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the access log of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
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
	text := t.text(pod, line, raw)
	if _, err := fmt.Fprintln(t.out, text); err != nil {
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

func (t *tap) text(pod *corev1.Pod, line accesslog.Line, raw []byte) string {
	if t.flags.output == "json" {
		text, err := json.Marshal(struct {
			Pod  string          `json:"pod"`
			Line json.RawMessage `json:"line"`
		}{nameOf(pod), raw})
		if err == nil {
			return string(text)
		}
	}
	text := textOf(pod, line)
	if t.flags.output == "wide" {
		text += " flags=" + cmp.Or(line.Flags, "-") + " request-id=" + cmp.Or(line.RequestID, "-")
	}
	return text
}

// textOf is a line for people.
func textOf(pod *corev1.Pod, line accesslog.Line) string {
	arrow, other := "<-", otherEnd(line.Client, line.Caller)
	if line.IsFrom(addressesOf(pod)) {
		arrow, other = "->", otherEnd(line.Server, line.Host)
	}
	at := "-"
	if !line.Start.IsZero() {
		at = line.Start.Local().Format("15:04:05.000")
	}
	words := []string{at, nameOf(pod), arrow, other}
	if line.Method != "" {
		words = append(words, line.Method, line.Authority+line.Path)
	} else {
		words = append(words, "TCP")
	}
	if line.Code > 0 {
		words = append(words, fmt.Sprint(line.Code))
	}
	words = append(words, line.Duration.Round(time.Millisecond).String())
	if line.Reason != "" {
		words = append(words, "refused: "+line.Reason)
	}
	return strings.Join(words, " ")
}

// otherEnd returns the identity of the other end, or its address.
func otherEnd(identity mesh.Identity, address string) string {
	switch {
	case identity != (mesh.Identity{}):
		return identity.Namespace + "/" + identity.ServiceAccount
	case address != "":
		return address
	}
	return "nobody"
}

func addressesOf(pod *corev1.Pod) []string {
	addresses := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	return addresses
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
		t.warn("nothing was logged yet: there were no requests, or the access log is limited by spec.observability.accessLog of the MeshConfig or the annotation %s of the pods or their namespace", source.AccessLogAnnotation)
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
