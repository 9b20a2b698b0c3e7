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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// healthPort is the port of the controller's and the injector's probes and version.
const healthPort = 9091

// versions is what 'outrigger version' prints with -o json and yaml.
type versions struct {
	Client version.Info `json:"client"`
	// ControlPlane is empty without a cluster.
	ControlPlane []podVersion   `json:"controlPlane,omitempty"`
	DataPlane    []agentVersion `json:"dataPlane,omitempty"`
}

// podVersion is the version that a pod of the control plane reports.
type podVersion struct {
	Namespace    string `json:"namespace"`
	Pod          string `json:"pod"`
	version.Info `json:",inline"`
}

// agentVersion is the version of the agents of some pods: the tag or the digest of the image
// that installed the agent.
type agentVersion struct {
	Version string `json:"version"`
	Pods    int    `json:"pods"`
}

func newVersionCommand() *cobra.Command {
	var (
		kube       kubeFlags
		namespace  string
		output     string
		clientOnly bool
		timeout    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, the control plane and the data plane",
		Long: `Show the version of this program, the control plane and the data plane.

The command asks the pods of the control plane through the API server, as 'kubectl
port-forward' does. The versions of the data plane are those of the agents: it reads them
from the image of the init container in each pod with a sidecar. Without a kubeconfig
file, it shows only the version of this program.

Exit codes: 0 success, 1 something failed, 2 wrong usage.`,
		Example: `  # everything
  outrigger version

  # only the version of this program, without a cluster
  outrigger version --client -o json`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "json", "yaml"}, output) {
				return usage.Errorf("-o %q: formats are json and yaml", output)
			}
			if timeout <= 0 {
				return usage.Errorf("--timeout %s: give a time such as 30s", timeout)
			}
			found := versions{Client: version.Get()}
			var failed error
			if !clientOnly {
				ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no answer in %s", timeout))
				defer cancel()
				failed = found.ask(ctx, kube, namespace)
			}
			if clientcmd.IsEmptyConfig(errors.Unwrap(failed)) {
				terminal.Fprintln(cmd.ErrOrStderr(), "no cluster is configured, so only the version of this program is shown; name a cluster with --kubeconfig")
				failed = nil
			}
			var err error
			if output != "" {
				err = usage.PrintAs(cmd.OutOrStdout(), output, found)
			} else {
				err = found.print(cmd.OutOrStdout())
			}
			return errors.Join(err, failed)
		},
	}
	flags := cmd.Flags()
	kube.add(flags)
	flags.StringVar(&namespace, "mesh-namespace", env("POD_NAMESPACE", "osm-system"), "namespace of the control plane")
	flags.BoolVar(&clientOnly, "client", false, "show only the version of this program")
	flags.DurationVar(&timeout, "timeout", 30*time.Second, "how long the requests may take")
	flags.StringVarP(&output, "output", "o", "", "format: json or yaml; the default is a table")
	return cmd
}

// ask adds the versions in the cluster. The error names pods that do not answer; those of the
// others are added.
func (v *versions) ask(ctx context.Context, kube kubeFlags, namespace string) error {
	config, err := kube.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	control, err := page.All[corev1.Pod](ctx, client.CoreV1().Pods(namespace).List, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=outrigger", FieldSelector: "status.phase=Running"})
	if err != nil {
		return fmt.Errorf("listing the control plane's pods in %s: %w", namespace, err)
	}
	var failed []error
	if len(control) == 0 {
		failed = append(failed, fmt.Errorf("no pod of the control plane is running in namespace %s; name another namespace with --mesh-namespace", namespace))
	}
	for _, pod := range control {
		of := podVersion{Namespace: pod.Namespace, Pod: pod.Name}
		answer, err := forward(ctx, config, pod, healthPort, "/version", "")
		if err == nil && answer == nil {
			err = errors.New("it has no page /version")
		}
		if err == nil {
			err = json.Unmarshal(answer, &of.Info)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("version of pod %s/%s: %w", pod.Namespace, pod.Name, err))
			continue
		}
		v.ControlPlane = append(v.ControlPlane, of)
	}
	pods, err := page.All[corev1.Pod](ctx, client.CoreV1().Pods("").List, metav1.ListOptions{})
	if err != nil {
		return errors.Join(append(failed, fmt.Errorf("listing the pods, to find those that have a sidecar: %w", err))...)
	}
	v.DataPlane = agentVersions(pods)
	return errors.Join(failed...)
}

// agentVersions counts the pods by the version of their agent.
func agentVersions(pods []corev1.Pod) []agentVersion {
	count := make(map[string]int)
	for _, pod := range pods {
		at := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == driver.InitContainer })
		if at >= 0 && inject.Injected(&pod) && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			count[imageVersion(pod.Spec.InitContainers[at].Image)]++
		}
	}
	var all []agentVersion
	for _, number := range slices.Sorted(maps.Keys(count)) {
		all = append(all, agentVersion{number, count[number]})
	}
	return all
}

// imageVersion returns the tag of an image, or its digest if it has no tag.
func imageVersion(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	return cmp.Or(tag, digest, "latest")
}

// print writes a table of components, versions and their places.
func (v *versions) print(w io.Writer) error {
	table := terminal.NewTable(w, 3)
	table.Row("Client", v.Client.String())
	for _, pod := range v.ControlPlane {
		table.Row("Control plane", pod.Version, pod.Namespace+"/"+pod.Pod)
	}
	for _, agents := range v.DataPlane {
		pods := "pods"
		if agents.Pods == 1 {
			pods = "pod"
		}
		table.Row("Data plane", agents.Version, fmt.Sprintf("%d %s", agents.Pods, pods))
	}
	return table.Flush()
}
