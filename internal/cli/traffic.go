package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/scrape"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

const (
	// readWindow and prometheusWindow are the defaults of --window. Prometheus has few samples
	// of a short time.
	readWindow       = 10 * time.Second
	prometheusWindow = 5 * time.Minute
)

// trafficFlags are the flags of the commands that show traffic.
type trafficFlags struct {
	proxyFlags
	prometheus string
	window     time.Duration
	formats    []string // the values of --output
}

func (f *trafficFlags) add(cmd *cobra.Command, formats ...string) {
	f.addRead(cmd, formats...)
	cmd.Flags().StringVar(&f.prometheus, "prometheus", "", "URL of a Prometheus that scrapes the proxies; the default is to read the proxies")
}

// addRead adds the flags of a command that always reads the proxies.
func (f *trafficFlags) addRead(cmd *cobra.Command, formats ...string) {
	flags := cmd.Flags()
	f.formats = formats
	f.kube.add(flags)
	f.addMesh(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace; the default is that of the kubeconfig's context, or all with --debug-address")
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces")
	if len(formats) > 0 {
		flags.StringVarP(&f.output, "output", "o", "", "format: "+strings.Join(formats[:len(formats)-1], ", ")+" or "+formats[len(formats)-1]+"; the default is a table")
		completeValues(cmd, "output", formats...)
	}
	f.kube.complete(cmd)
}

// check returns an error for flags that can't be used together.
func (f *trafficFlags) check() error {
	if f.output != "" && !slices.Contains(f.formats, f.output) {
		return usage.Errorf("-o %q: formats are %s", f.output, strings.Join(f.formats, ", "))
	}
	if f.all && f.namespace != "" {
		return usage.Errorf("-A means all namespaces: do not give -n with it")
	}
	switch server, err := url.Parse(f.prometheus); {
	case f.prometheus == "" && (f.window < 0 || f.window > debug.MaxPeriod):
		return usage.Errorf("--window %s: give a time such as 10s, at most %s; Prometheus has longer ones", f.window, debug.MaxPeriod)
	case f.window < 0:
		return usage.Errorf("--window %s: give a time such as 10m", f.window)
	case f.prometheus == "":
	case f.address != "":
		return usage.Errorf("--prometheus asks no controller: do not give --debug-address with it")
	case err != nil || server.Host == "" || server.Scheme != "http" && server.Scheme != "https":
		return usage.Errorf("--prometheus %q: give a URL such as http://127.0.0.1:9090", f.prometheus)
	}
	return f.proxyFlags.check()
}

// scope returns the namespace that the command is about, empty for all.
func (f *trafficFlags) scope() (string, error) {
	if f.all || f.namespace != "" {
		return f.namespace, nil
	}
	if f.address != "" {
		return "", nil
	}
	return f.kube.namespace()
}

// report returns the traffic of a period, or since the proxies started if it is 0. Only the
// proxies of some namespaces are read, or all if none is named.
func (f *trafficFlags) report(ctx context.Context, period time.Duration, namespaces ...string) (*traffic.Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout+period, fmt.Errorf("no answer in %s", f.timeout+period))
	defer cancel()
	if f.prometheus != "" {
		server, err := url.Parse(f.prometheus)
		if err != nil {
			return nil, err
		}
		return scrape.Prometheus(ctx, server, period)
	}
	query := url.Values{"period": {period.String()}}
	for _, namespace := range namespaces {
		if namespace != "" {
			query.Add("namespace", namespace)
		}
	}
	answer, err := f.askAny(ctx, debug.TrafficPath+"?"+query.Encode())
	if refused, ok := errors.AsType[statusError](err); ok && (refused.code == http.StatusNotFound || refused.code == http.StatusForbidden) {
		return nil, fmt.Errorf("%w; the control plane may be older than this program: run 'outrigger upgrade'", err)
	} else if err != nil {
		return nil, err
	}
	var report traffic.Report
	if err := json.Unmarshal(answer, &report); err != nil {
		return nil, fmt.Errorf("reading the controller's answer: %w", err)
	}
	return &report, nil
}

// trafficKinds are the kinds that have traffic, by all of kubectl's names.
var trafficKinds = func() map[string]string {
	kinds := maps.Clone(podKinds)
	for _, name := range []string{"ns", "namespace", "namespaces"} {
		kinds[name] = traffic.KindNamespace
	}
	kinds["all"] = traffic.KindAny
	return kinds
}()

// trafficKind parses the name of a kind.
func trafficKind(text string) (string, error) {
	kind, ok := trafficKinds[strings.ToLower(text)]
	if !ok {
		return "", usage.Errorf("%q is not a type of object that has traffic; types are deploy, sts, ds, rs, job, po, svc, ns and all%s",
			text, suggestion(text, slices.Collect(maps.Keys(trafficKinds))))
	}
	return kind, nil
}

// trafficObjects parses TYPE [NAME...] or TYPE/NAME..., whose types must be equal.
func trafficObjects(args []string) (kind string, names []string, err error) {
	for i, arg := range args {
		of, name, isPair := strings.Cut(arg, "/")
		switch {
		case i == 0 || isPair:
			parsed, err := trafficKind(of)
			if err != nil {
				return "", nil, err
			}
			if kind != "" && parsed != kind {
				return "", nil, usage.Errorf("%s: all objects must have the type of the first, %s; use the type all for workloads of several types", arg, args[0])
			}
			kind = parsed
		default:
			name = arg
		}
		if name == "" && (i > 0 || isPair) || strings.Contains(name, "/") {
			return "", nil, usage.Errorf("%q: give TYPE [NAME...] or TYPE/NAME", arg)
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return kind, names, nil
}

// trafficObject parses TYPE/NAME, or returns nil for an empty text.
func trafficObject(text, namespace, what string) (*traffic.Object, error) {
	if text == "" {
		return nil, nil
	}
	of, name, _ := strings.Cut(text, "/")
	if name == "" || strings.Contains(name, "/") {
		return nil, usage.Errorf("%s %q: give TYPE/NAME, such as deploy/web", what, text)
	}
	kind, err := trafficKind(of)
	switch {
	case err != nil:
		return nil, err
	case kind == traffic.KindAny:
		return nil, usage.Errorf("%s %q: name the type of the object, such as deploy/web", what, text)
	case kind == traffic.KindNamespace:
		return &traffic.Object{Kind: kind, Name: name}, nil
	case namespace == "":
		return nil, usage.Errorf("%s %q: name its namespace with -n, or with %s-namespace", what, text, what)
	}
	return &traffic.Object{Kind: kind, Namespace: namespace, Name: name}, nil
}

// object returns the object in the arguments, nil without one, and the scope of the command.
func (f *trafficFlags) object(args []string) (object *traffic.Object, scope string, err error) {
	if scope, err = f.scope(); err != nil {
		return nil, "", err
	}
	object, err = trafficObject(strings.Join(args, ""), scope, "the object")
	return object, scope, err
}

// warnUnread names the pods that could not be read, one line for each reason.
func warnUnread(w io.Writer, unread []traffic.Pod) {
	byProblem := make(map[string][]string)
	for i := range unread {
		byProblem[unread[i].Problem] = append(byProblem[unread[i].Problem], unread[i].Name.String())
	}
	for _, problem := range slices.Sorted(maps.Keys(byProblem)) {
		pods := byProblem[problem]
		what := "a pod is missing in the numbers"
		if len(pods) > 1 {
			what = fmt.Sprintf("%d pods are missing in the numbers", len(pods))
		}
		terminal.Fprintf(w, "warning: %s: %s: %s\n", what, problem, strings.Join(pods, ", "))
	}
}

// atMostOneObject checks the arguments of a command that takes one object or none.
func atMostOneObject(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage.Errorf("%s: give at most one object, as TYPE/NAME", cmd.CommandPath())
	}
	return nil
}

// completeObject completes the argument of such a command.
func (f *trafficFlags) completeObject(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.completeTraffic(cmd, nil, begun)
}

// completeTraffic completes types, and after TYPE or TYPE/ the names of objects.
func (f *trafficFlags) completeTraffic(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	of, _, isPair := strings.Cut(begun, "/")
	prefix := of + "/"
	if !isPair {
		if len(args) == 0 {
			types := slices.DeleteFunc([]string{"all", "deploy", "ds", "job", "ns", "po", "rs", "sts", "svc"}, func(t string) bool { return !strings.HasPrefix(t, begun) })
			return types, cobra.ShellCompDirectiveNoFileComp
		}
		of, prefix = args[0], ""
	}
	kind := trafficKinds[strings.ToLower(of)]
	return f.kube.names(begun, args, func(ctx context.Context) ([]string, error) {
		names, err := f.objectNames(ctx, kind)
		for i := range names {
			names[i] = prefix + names[i]
		}
		return names, err
	})
}

// objectNames lists the names of the cluster's objects of a kind.
func (f *trafficFlags) objectNames(ctx context.Context, kind string) ([]string, error) {
	namespace, err := f.scope()
	if err != nil {
		return nil, err
	}
	client, err := f.kube.client()
	if err != nil {
		return nil, err
	}
	options := metav1.ListOptions{Limit: completeMost}
	var names []string
	add := func(object metav1.Object) { names = append(names, object.GetName()) }
	switch kind {
	case traffic.KindNamespace:
		err = each(ctx, client.CoreV1().Namespaces().List, options, add)
	case traffic.KindPod:
		err = each(ctx, client.CoreV1().Pods(namespace).List, options, add)
	case traffic.KindService:
		err = each(ctx, client.CoreV1().Services(namespace).List, options, add)
	case "deployment":
		err = each(ctx, client.AppsV1().Deployments(namespace).List, options, add)
	case "statefulset":
		err = each(ctx, client.AppsV1().StatefulSets(namespace).List, options, add)
	case "daemonset":
		err = each(ctx, client.AppsV1().DaemonSets(namespace).List, options, add)
	case "replicaset":
		err = each(ctx, client.AppsV1().ReplicaSets(namespace).List, options, add)
	case "job":
		err = each(ctx, client.BatchV1().Jobs(namespace).List, options, add)
	}
	return names, err
}
