package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/internal/check"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// checkFlags are the flags of 'outrigger check'.
type checkFlags struct {
	kube    kubeFlags
	mesh    meshFlags
	pre     bool
	strict  bool
	window  time.Duration
	wait    time.Duration
	timeout time.Duration
	output  string
}

// checkAgain is the pause between two checks with --wait.
const checkAgain = 2 * time.Second

func newCheckCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the mesh or the cluster, and show how to fix what is wrong",
		Long: `Check the mesh or the cluster, and show how to fix what is wrong.

With --pre, the command checks whether the mesh can be installed in the cluster. Otherwise
it checks the installed mesh. It prints one line for each finding, with the object and,
below it, what to do. It changes nothing: it tests the webhook with a dry run.

With --strict-ready, it checks instead whether the inbound TLS mode Strict is safe: whether
the pods that have the mode Permissive still receive requests or connections without mesh
TLS. It reads what their sidecars have counted since they started, or only during --window.

Exit codes: 0 there is no error (there may be warnings), 1 there is an error or the API
server does not answer, 2 wrong usage.`,
		Example: `  # can the mesh be installed?
  outrigger check --pre

  # after an installation, wait until there is no error
  outrigger check --wait 2m

  # does anybody still send plaintext to pods in the mode Permissive?
  outrigger check --strict-ready

  # only warnings and errors, for a program
  outrigger check -o json | jq '.findings[] | select(.level != "ok")'`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "json", "yaml"}, f.output) {
				return usage.Errorf("-o %q: formats are json and yaml", f.output)
			}
			if f.timeout <= 0 || f.wait < 0 {
				return usage.Errorf("--timeout and --wait are times such as 30s")
			}
			switch {
			case f.strict && f.pre:
				return usage.Errorf("--pre is before an installation: do not give --strict-ready with it")
			case f.window != 0 && !f.strict:
				return usage.Errorf("--window is for --strict-ready")
			case f.window < 0 || f.window > debug.MaxPeriod:
				return usage.Errorf("--window %s: give a time such as 1m, at most %s", f.window, debug.MaxPeriod)
			}
			findings, err := f.run(cmd.Context())
			if err != nil {
				return err
			}
			if f.output != "" {
				err = usage.PrintAs(cmd.OutOrStdout(), f.output, map[string]any{"level": check.Worst(findings), "findings": findings})
			} else {
				err = printFindings(cmd.OutOrStdout(), findings)
			}
			if err == nil && check.Worst(findings) == check.Error {
				return errReported
			}
			return err
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	f.mesh.add(flags)
	f.mesh.addConfig(flags)
	flags.BoolVar(&f.pre, "pre", false, "check the cluster before an installation")
	flags.BoolVar(&f.strict, "strict-ready", false, "check whether the inbound TLS mode Strict is safe")
	flags.DurationVar(&f.window, "window", 0, "with --strict-ready, how long requests are counted; the default is since the sidecars started")
	flags.DurationVar(&f.wait, "wait", 0, "repeat the checks until there is no error, for at most this long")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long one run of all checks may take")
	flags.StringVarP(&f.output, "output", "o", "", "format: json or yaml; the default is one line for each finding")
	f.kube.complete(cmd)
	completeValues(cmd, "output", "json", "yaml")
	return cmd
}

// run checks once or, with --wait, until there is no error or the time is over.
func (f *checkFlags) run(ctx context.Context) ([]check.Finding, error) {
	config, err := f.kube.burstConfig()
	if err != nil {
		return nil, err
	}
	over := time.Now().Add(f.wait)
	for {
		findings, err := f.once(ctx, config)
		if err == nil && check.Worst(findings) != check.Error || time.Now().Add(checkAgain).After(over) {
			return findings, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(checkAgain):
		}
	}
}

func (f *checkFlags) once(ctx context.Context, config *rest.Config) ([]check.Finding, error) {
	timeout := f.timeout + f.window
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %s", timeout))
	defer cancel()
	facts, err := check.Gather(ctx, check.Options{
		Config: config, Mesh: f.mesh.Name, Namespace: f.mesh.Namespace, MeshConfig: f.mesh.Config,
		Webhook: inject.WebhookName(f.mesh.Revision, f.mesh.Name), Revision: f.mesh.Revision, Version: version.Number, Pre: f.pre, Strict: f.strict,
		Decide:   f.decider,
		Proxies:  f.proxies,
		Traffic:  f.traffic,
		Releases: sidecar.Releases,
		Ask: func(ctx context.Context, pod corev1.Pod, path string) ([]byte, error) {
			ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
			defer cancel()
			return forward(ctx, config, pod, healthPort, path, "")
		},
	})
	if err != nil {
		return nil, err
	}
	checks := check.After()
	switch {
	case f.pre:
		checks = check.Before()
	case f.strict:
		checks = check.Strict()
	}
	return check.Run(checks, facts), nil
}

// decider returns the injector's decision function, with the cluster's configuration.
func (f *checkFlags) decider(ctx context.Context, namespaces map[string]*inject.Namespace) (func(*corev1.Pod) inject.Result, error) {
	flags := engineFlags{kube: f.kube, mesh: f.mesh, fromCluster: true, problems: io.Discard, known: namespaces}
	engine, err := flags.build(ctx, nil)
	if err != nil {
		return nil, err
	}
	return func(pod *corev1.Pod) inject.Result {
		raw, err := json.Marshal(pod)
		if err != nil {
			return inject.Result{Decision: inject.Decision{Outcome: inject.Deny, Message: err.Error()}}
		}
		return engine.Inject(ctx, inject.Request{Namespace: pod.Namespace, Pod: raw, DryRun: true})
	}, nil
}

func (f *checkFlags) proxies(ctx context.Context) ([]registry.Proxy, error) {
	flags := proxyFlags{kube: f.kube, mesh: f.mesh, timeout: f.timeout}
	listed, err := flags.list(ctx)
	proxies := make([]registry.Proxy, 0, len(listed))
	for i := range listed {
		proxies = append(proxies, listed[i].Proxy)
	}
	return proxies, err
}

// traffic reads what all proxies have counted.
func (f *checkFlags) traffic(ctx context.Context) (*traffic.Report, error) {
	flags := trafficFlags{proxyFlags: proxyFlags{kube: f.kube, mesh: f.mesh, timeout: f.timeout}}
	return flags.report(ctx, f.window)
}

// printFindings writes the findings by section: a line for each, and its fix below.
func printFindings(w io.Writer, findings []check.Finding) error {
	marks := map[check.Level]string{check.OK: "ok     ", check.Warning: "warning", check.Error: "error  "}
	var b strings.Builder
	section, counts := "", make(map[check.Level]int)
	for _, f := range findings {
		of, question, _ := strings.Cut(f.Check, "/")
		if of != section {
			if section != "" {
				b.WriteString("\n")
			}
			section = of
			b.WriteString(of + "\n")
		}
		counts[f.Level]++
		object := f.Object
		if object != "" {
			object += ": "
		}
		terminal.Fprintf(&b, "  %s  %s: %s%s\n", marks[f.Level], question, object, f.Message)
		if f.Fix != "" {
			terminal.Fprintf(&b, "           fix: %s\n", f.Fix)
		}
	}
	terminal.Fprintf(&b, "\n%d ok, %d warnings, %d errors\n", counts[check.OK], counts[check.Warning], counts[check.Error])
	_, err := io.WriteString(w, b.String())
	return err
}
