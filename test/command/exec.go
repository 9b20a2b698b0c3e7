package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/test/playground"
)

func newExecCommand() *cobra.Command {
	var of, container string
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] -- COMMAND [ARGUMENTS]",
		Short: "Run a command in a pod of a running lab",
		Long: `Run a command in a pod of a running lab.

POD is NAMESPACE/POD, or POD if that is unique. The name of a workload means its first pod.
The command runs in the pod's network, with the files, the environment and the user of the
container; its requests pass through the sidecar. It reads and writes this terminal, and gets
the signals of Ctrl-C.

The exit code is that of the command, 128 plus the number of the signal that ended it, 1 if it
could not be run, or 2 for wrong usage.`,
		Example: `  # a request from a pod of the workload client
  outrigger-lab exec client -- curl http://web/

  # a shell in a certain container
  outrigger-lab exec shop/web-0 -c web -- sh`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || cmd.ArgsLenAtDash() > 1 || cmd.ArgsLenAtDash() == 0 {
				return usage.Errorf("%s: name a pod, and a command after --, such as 'exec client -- curl http://web/'", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := running(of)
			if err != nil {
				return err
			}
			signals := make(chan os.Signal, 8)
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer signal.Stop(signals)
			var env []string
			if term := os.Getenv("TERM"); term != "" {
				env = append(env, "TERM="+term)
			}
			code, err := playground.Execute(info.Name, playground.Command{
				Pod: args[0], Container: container, Args: args[1:], Env: env,
				Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}, Signals: signals,
			})
			if err == nil && code != 0 {
				return usage.Code(code)
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "the container (default the pod's first)")
	cmd.Flags().StringVar(&of, "lab", "", "name of the lab, if several are running")
	return cmd
}

func newLogsCommand() *cobra.Command {
	var (
		of, container string
		follow        bool
		tail          int
	)
	cmd := &cobra.Command{
		Use:   "logs NAMESPACE/POD [-c CONTAINER]",
		Short: "Show the output of a container of a running lab",
		Long: `Show the output of a container of a running lab: its latest 5,000 lines. The sidecar is the
container outrigger-proxy.`,
		Example: `  # the output of a pod's first container, and what comes next
  outrigger-lab logs shop/web-0 -f

  # the access log of its sidecar
  outrigger-lab logs shop/web-0 -c outrigger-proxy`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || strings.Count(args[0], "/") != 1 {
				return usage.Errorf("%s: name one pod, as NAMESPACE/POD; 'outrigger lab list' counts them", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := running(of)
			if err != nil {
				return err
			}
			namespace, pod, _ := strings.Cut(args[0], "/")
			query := url.Values{"follow": {strconv.FormatBool(follow)}}
			if container != "" {
				query.Set("container", container)
			}
			if tail >= 0 {
				query.Set("tailLines", strconv.Itoa(tail))
			}
			address := url.URL{Scheme: "http", Host: info.Debug, Path: "/api/v1/namespaces/" + namespace + "/pods/" + pod + "/log", RawQuery: query.Encode()}
			return copyLog(cmd, address.String(), args[0])
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "the container (default the pod's first)")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show new output until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", -1, "how many of the latest lines to show; -1 means all")
	cmd.Flags().StringVar(&of, "lab", "", "name of the lab, if several are running")
	return cmd
}

// copyLog copies the output at an address to that of the command.
func copyLog(cmd *cobra.Command, address, pod string) error {
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		var status metav1.Status
		if json.NewDecoder(response.Body).Decode(&status) != nil {
			status.Message = response.Status
		}
		return fmt.Errorf("the output of %s: %s", pod, status.Message)
	}
	_, err = io.Copy(terminal.Writer(cmd.OutOrStdout()), response.Body)
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}
