package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/internal/accesslog"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// maxLogs limits the pods whose logs are read at once: each is a connection to a kubelet.
	maxLogs = 100
	// maxLine bounds a line of a log, in bytes.
	maxLine = 1 << 20
)

// accessLogFlags are the flags of the commands that read the access logs of pods.
type accessLogFlags struct {
	proxyFlags
	filter   accesslog.Filter
	selector string
}

func (f *accessLogFlags) addPods(flags *pflag.FlagSet) {
	f.kube.add(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pods; the default is that of the kubeconfig's context, or all with --debug-address")
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "pods of all namespaces")
	flags.StringVarP(&f.selector, "selector", "l", "", "labels of the pods, for example app=cart")
	flags.StringVar(&f.filter.RequestID, "request-id", "", "only the request with this value of the header x-request-id")
}

// isDemo reports whether the pods are those of a demo, which answers for an API server at
// --debug-address.
func (f *accessLogFlags) isDemo() bool { return f.address != "" && !f.kube.isSet() }

// client returns a client for the pods and their logs.
func (f *accessLogFlags) client() (kubernetes.Interface, error) {
	if !f.isDemo() {
		return f.kube.client()
	}
	return kubernetes.NewForConfig(&rest.Config{Host: "http://" + f.address})
}

func (f *accessLogFlags) checkPods(command string, args []string) error {
	switch {
	case f.all && (f.namespace != "" || len(args) > 0):
		return usage.Errorf("%s: -A can't be combined with -n or with names of pods", command)
	case f.selector != "" && len(args) > 0:
		return usage.Errorf("%s: -l can't be combined with names of pods", command)
	case f.address != "":
		return f.checkAddress()
	}
	return nil
}

// firstPods is pods, but an error if there are too many.
func (f *accessLogFlags) firstPods(ctx context.Context, client kubernetes.Interface, args []string) ([]corev1.Pod, error) {
	pods, err := f.pods(ctx, client, args)
	if err == nil && len(pods) > maxLogs {
		err = fmt.Errorf("%d pods have a sidecar, and the logs of at most %d can be read at once; name a workload, or select pods with -l", len(pods), maxLogs)
	}
	return pods, err
}

// errNoPods is the error of a command that has nothing to read.
var errNoPods = errors.New("there are no running pods with a sidecar")

// pods returns the running pods with a proxy that the arguments and flags select.
func (f *accessLogFlags) pods(ctx context.Context, client kubernetes.Interface, args []string) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	if len(args) == 0 {
		namespace := f.namespace
		if namespace == "" && !f.all && !f.isDemo() {
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

// eachLine calls do with each line of a pod's access log and its text, which is valid during the
// call, until do returns false, the log ends or ctx does. The container of the options is set.
func eachLine(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, options *corev1.PodLogOptions, do func(line accesslog.Line, text []byte) bool) error {
	options.Container = driver.ProxyContainer
	stream, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("the access log of pod %s: %w", nameOf(pod), err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if line, ok := accesslog.Parse(lines.Bytes()); ok && !do(line, lines.Bytes()) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the access log of pod %s: %w", nameOf(pod), err)
	}
	return nil
}

// secondsOf returns a time for PodLogOptions, at least a second.
func secondsOf(since time.Duration) *int64 { return new(int64(max(since.Seconds(), 1))) }

func nameOf(pod *corev1.Pod) string {
	return mesh.Name{Namespace: pod.Namespace, Name: pod.Name}.String()
}

// textOf is a line for people.
func textOf(pod *corev1.Pod, line accesslog.Line) string {
	arrow, other := "<-", otherEnd(line.Client, line.Caller)
	if line.IsFrom(addressesOf(pod)) {
		arrow, other = "->", otherEnd(line.Server, cmp.Or(line.Host, line.Destination))
	}
	at := "-"
	if !line.Start.IsZero() {
		at = line.Start.Local().Format("15:04:05.000")
	}
	words := []string{at, terminal.Word(nameOf(pod)), arrow, terminal.Word(other)}
	if line.Method != "" {
		words = append(words, terminal.Word(line.Method), terminal.Word(line.Authority+line.Path))
	} else if line.IsNotHTTP() {
		words = append(words, "not HTTP")
	} else if line.Silent {
		words = append(words, "silent")
	} else {
		words = append(words, "TCP")
	}
	if line.Code > 0 {
		words = append(words, fmt.Sprint(line.Code))
	}
	words = append(words, line.Duration.Round(time.Millisecond).String())
	if line.Reason != "" {
		words = append(words, "refused: "+terminal.Word(line.Reason))
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
