package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func newProxyLogsCommand() *cobra.Command {
	var (
		f       proxyFlags
		options corev1.PodLogOptions
		tail    int64
		since   time.Duration
		setup   bool
	)
	cmd := &cobra.Command{
		Use:   "logs POD | TYPE/NAME | NAMESPACE/POD",
		Short: "Print the log of a pod's sidecar",
		Long: `Print the log of a pod's sidecar.

This is the log of the container outrigger-proxy, in which the agent runs the proxy. If
the argument names several pods, the log of one that is running is printed.

Exit codes: 0 the log was read, 1 there is no sidecar or something failed, 2 wrong usage.`,
		Example: `  outrigger proxy logs deploy/web -n shop -f

  # What did a sidecar log before its last restart?
  outrigger proxy logs web-0 --previous --tail 50`,
		Args:              oneTarget,
		ValidArgsFunction: f.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if tail < -1 || since < 0 {
				return usage.Errorf("%s: --tail and --since must not be negative", cmd.CommandPath())
			}
			target, err := f.target(args[0])
			if err != nil {
				return err
			}
			client, err := f.kube.client()
			if err != nil {
				return err
			}
			pods, err := target.pods(cmd.Context(), client)
			if err != nil {
				return err
			}
			pod, err := target.chosen(pods)
			if err != nil {
				return err
			}
			if len(pods) > 1 {
				terminal.Fprintf(cmd.ErrOrStderr(), "%s has %d pods; showing %s/%s\n", target, len(pods), pod.Namespace, pod.Name)
			}
			options.Container = driver.ProxyContainer
			if setup {
				options.Container = driver.InitContainer
			}
			if tail >= 0 {
				options.TailLines = &tail
			}
			if since > 0 {
				options.SinceSeconds = new(int64(max(since.Seconds(), 1)))
			}
			return copyLog(cmd.Context(), client, pod, &options, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pod; the default is that of the kubeconfig's context")
	flags.BoolVarP(&options.Follow, "follow", "f", false, "keep printing new lines")
	flags.BoolVarP(&options.Previous, "previous", "p", false, "the log of the container before its last restart")
	flags.BoolVar(&options.Timestamps, "timestamps", false, "print the time before each line")
	flags.BoolVar(&setup, "init", false, "the log of the init container, which redirects the pod's traffic")
	flags.Int64Var(&tail, "tail", -1, "how many lines from the end of the log; -1 means all")
	flags.DurationVar(&since, "since", 0, "only lines that are not older than this, for example 10m")
	f.kube.complete(cmd)
	return cmd
}

// copyLog writes a container's log until the log or ctx ends.
func copyLog(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, options *corev1.PodLogOptions, w io.Writer) error {
	stream, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("the log of container %s of pod %s/%s: %w", options.Container, pod.Namespace, pod.Name, err)
	}
	defer stream.Close()
	if _, err := io.Copy(terminal.Writer(w), stream); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the log of container %s of pod %s/%s: %w", options.Container, pod.Namespace, pod.Name, err)
	}
	return nil
}
