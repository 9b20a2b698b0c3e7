package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// explainer is an engine that reports the steps of its decisions.
type explainer interface {
	Explain(ctx context.Context, req inject.Request) inject.Result
}

// explained is the explanation for one object, as -o json and -o yaml print it.
type explained struct {
	Object    string           `json:"object"`
	Outcome   inject.Outcome   `json:"outcome"`
	Reason    inject.Reason    `json:"reason"`
	Message   string           `json:"message"`
	Steps     []inject.Step    `json:"steps"`
	Class     string           `json:"class,omitempty"`
	Templates []string         `json:"templates,omitempty"`
	Added     []string         `json:"added,omitempty"`
	Warnings  []inject.Warning `json:"warnings,omitempty"`
	// Policy is the admission policy that has injected the pod, if one has.
	Policy string `json:"policy,omitempty"`
}

func newCheckInjectCommand() *cobra.Command {
	var (
		f      engineFlags
		files  []string
		output string
	)
	cmd := &cobra.Command{
		Use:   "check-inject POD | -f FILE",
		Short: "Explain step by step whether a pod gets a sidecar, and why",
		Long: `Explain step by step whether a pod gets a sidecar, and why.

With POD, the command reads the pod, its namespace and the mesh's configuration from
the cluster, and explains what the injector would decide if the pod were created now.
With -f, it explains what 'outrigger inject' would decide about the pods and workloads
of a file.`,
		Example: `  outrigger check-inject cart-7d9f-x2x4z -n shop
  outrigger check-inject -f deployment.yaml
  outrigger check-inject -f deployment.yaml --from-cluster -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" && output != "yaml" {
				return usage.Errorf("-o %q: formats are text, json and yaml", output)
			}
			f.problems = cmd.ErrOrStderr()
			var (
				answers []explained
				err     error
			)
			switch {
			case len(args) == 1 && len(files) == 0:
				answers, err = f.explainPod(cmd.Context(), args[0])
			case len(args) == 0 && len(files) > 0:
				answers, err = f.explainFiles(cmd.Context(), files, cmd.InOrStdin())
			default:
				return usage.Errorf("%s: name one POD, or a file with -f", cmd.CommandPath())
			}
			if err != nil {
				return err
			}
			return printExplained(cmd.OutOrStdout(), answers, output)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file or directory of manifests, or - for standard input")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format: text, json or yaml")
	return cmd
}

// explainPod explains a pod of the cluster.
func (f *engineFlags) explainPod(ctx context.Context, name string) ([]explained, error) {
	f.fromCluster = true
	engine, err := f.build(ctx, nil)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(f.kube, f.mesh)
	if err != nil {
		return nil, err
	}
	namespace, err := f.podNamespace()
	if err != nil {
		return nil, err
	}
	var pod corev1.Pod
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	raw, err := json.Marshal(&pod)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	r := engine.Explain(ctx, inject.Request{Namespace: namespace, Pod: raw, KeepForeign: true})
	answer := newExplained("Pod/"+namespace+"/"+name, r)
	answer.Policy = inject.PolicyOf(&pod)
	return []explained{answer}, nil
}

// explainFiles explains the pods of manifests, in order.
func (f *engineFlags) explainFiles(ctx context.Context, files []string, stdin io.Reader) ([]explained, error) {
	sources, err := offline.Read(files, stdin)
	if err != nil {
		return nil, err
	}
	manifests := offline.Parse(sources)
	engine, err := f.build(ctx, manifests.Namespaces())
	if err != nil {
		return nil, err
	}
	recorder := &recorder{explainer: engine}
	result, err := manifests.Inject(ctx, recorder, offline.Options{Namespace: f.namespace})
	answers := make([]explained, 0, len(recorder.results))
	next := 0
	for _, row := range result.Rows {
		if row.Outcome == offline.Failed {
			return nil, err
		}
		if row.Reason == offline.ReasonUnsupportedKind || next == len(recorder.results) {
			continue
		}
		answers = append(answers, newExplained(row.Kind+"/"+row.Namespace+"/"+row.Name, recorder.results[next]))
		next++
	}
	return answers, nil
}

// recorder is an engine that records the explanations of its decisions.
type recorder struct {
	explainer
	results []inject.Result
}

func (r *recorder) Inject(ctx context.Context, req inject.Request) inject.Result {
	result := r.Explain(ctx, req)
	r.results = append(r.results, result)
	return result
}

func newExplained(object string, r inject.Result) explained {
	return explained{
		Object: object, Outcome: r.Decision.Outcome, Reason: r.Decision.Reason, Message: r.Decision.Message,
		Steps: r.Decision.Steps, Class: r.Class, Templates: r.Templates, Added: r.Added, Warnings: r.Warnings,
	}
}

func printExplained(w io.Writer, answers []explained, format string) error {
	if format != "text" {
		return usage.PrintAs(w, format, answers)
	}
	var b strings.Builder
	for i, a := range answers {
		if i > 0 {
			b.WriteString("\n")
		}
		terminal.Fprintf(&b, "%s: %s (%s)\n", a.Object, a.Outcome, a.Reason)
		for _, s := range a.Steps {
			mark := " "
			if s.Decided {
				mark = "*"
			}
			terminal.Fprintf(&b, "  %s %-24s %s\n", mark, s.Rule, s.Saw)
		}
		if len(a.Steps) == 0 || a.Message != a.Steps[len(a.Steps)-1].Saw {
			terminal.Fprintf(&b, "  ! %s\n", a.Message)
		}
		if len(a.Added) > 0 {
			terminal.Fprintf(&b, "  gets: %s (templates: %s)\n", strings.Join(a.Added, ", "), strings.Join(a.Templates, ", "))
		}
		if a.Policy != "" {
			terminal.Fprintf(&b, "  has its sidecar from the admission policy %s\n", a.Policy)
		}
		for _, warning := range a.Warnings {
			terminal.Fprintf(&b, "  warning: %s: %s\n", warning.Code, warning.Message)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
