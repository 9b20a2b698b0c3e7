package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/handover"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// programName is the agent's file name in BinDir.
const programName = "outrigger-agent"

var initCommand = command{
	name:    "init",
	usage:   "init [FLAGS]",
	summary: "redirect the pod's traffic and install the agent (the init container)",
	long: `Init writes the rules that send the pod's TCP connections through the proxy, as
OUTRIGGER_REDIRECTION specifies, and copies the agent to ` + agentspec.BinDir + `, where
the sidecar container finds it. It needs the capability NET_ADMIN.

With --verify it writes no rules and needs no capability: it waits for the rules that
Outrigger's CNI plug-in writes on the node. If they are still missing after --timeout,
init exits with 3 and the pod's other containers do not start.

  OUTRIGGER_REDIRECTION='{"excludeInboundPorts":[9000]}' outrigger-agent init
  OUTRIGGER_REDIRECTION='{}' outrigger-agent init --verify`,
	prepare: func(p *program, flags *flag.FlagSet) func([]string) error {
		to := flags.String("to", agentspec.BinDir+"/", "`DEST` of the copy; a folder if it ends in a slash")
		verify := flags.Bool("verify", false, "write no rules but wait for those of the CNI plug-in")
		timeout := flags.Duration("timeout", 30*time.Second, "how `LONG` to wait with --verify")
		return func([]string) error {
			text, ok := p.env(agentspec.EnvRedirection)
			if !ok {
				return misuse{fmt.Errorf("environment variable %s is not set; the injector sets it", agentspec.EnvRedirection)}
			}
			var redirection agentspec.Redirection
			ignored, err := decode(text, &redirection)
			if err != nil {
				return misuse{fmt.Errorf("%s: %w", agentspec.EnvRedirection, err)}
			}
			if ignored != nil {
				// Traffic that bypasses the proxy is worse than a pod that does not start.
				return misuse{fmt.Errorf("%s: %w; the init image is older than the injector", agentspec.EnvRedirection, ignored)}
			}
			switch {
			case *verify:
				err = p.awaitRules(*timeout)
			case p.rules.Apply == nil:
				err = errors.New("this program cannot redirect traffic")
			default:
				err = p.rules.Apply(redirection)
			}
			if err != nil {
				return err
			}
			return copySelf(*to)
		}
	},
}

// rulesInterval is how often awaitRules looks for rules.
const rulesInterval = 200 * time.Millisecond

// awaitRules waits until the pod's traffic is redirected.
func (p *program) awaitRules(timeout time.Duration) error {
	if p.rules.Present == nil {
		return errors.New("this program cannot check whether traffic is redirected")
	}
	for began := time.Now(); ; time.Sleep(rulesInterval) {
		present, err := p.rules.Present()
		switch {
		case err != nil:
			return fmt.Errorf("checking whether the pod's traffic is redirected: %w", err)
		case present:
			return nil
		case time.Since(began) >= timeout:
			return refusal{fmt.Errorf("after %v the pod's traffic is still not redirected: its network was set up without Outrigger's CNI plug-in. "+
				"Check whether the DaemonSet outrigger-cni, which repairs such pods, runs on this node and what it logs; "+
				"until then no other container of the pod starts", timeout)}
		}
	}
}

var copyCommand = command{
	name:    "copy",
	usage:   "copy [DEST]",
	summary: "install the agent only",
	maxArgs: 1,
	long: `Copy copies the agent to DEST, or into it if it is a folder or ends in a slash. The
default is ` + agentspec.BinDir + `/. The file is written completely or not at all.

  outrigger-agent copy
  outrigger-agent copy /shared/bin/`,
	prepare: func(*program, *flag.FlagSet) func([]string) error {
		return func(args []string) error {
			if len(args) == 0 {
				args = []string{agentspec.BinDir + "/"}
			}
			return copySelf(args[0])
		}
	},
}

// copySelf copies the running program.
func copySelf(file string) error {
	if info, err := os.Stat(file); strings.HasSuffix(file, "/") || err == nil && info.IsDir() {
		file = filepath.Join(file, programName)
	}
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("opening the agent's own program: %w", err)
	}
	defer from.Close()
	if err := kit.WriteFile(file, from, 0o755); err != nil {
		return fmt.Errorf("copying the agent to %s: %w", file, err)
	}
	return nil
}

var waitCommand = command{
	name:    "wait",
	usage:   "wait [FLAGS]",
	summary: "wait until the agent reports the pod as ready (a postStart hook)",
	long: `Wait returns when this pod's agent reports that it is ready. As the postStart hook of
an ordinary sidecar container it delays the app's containers. It exits with 3 after
--timeout.

  outrigger-agent wait --timeout 2m`,
	prepare: func(p *program, flags *flag.FlagSet) func([]string) error {
		url := flags.String("url", "http://127.0.0.1:15901/ready", "`URL` to poll")
		timeout := flags.Duration("timeout", 5*time.Minute, "how `LONG` to wait, for example 30s")
		return func([]string) error {
			if !isHTTP(*url) {
				return misuse{fmt.Errorf("--url: %q is not an http URL", *url)}
			}
			return wait(*url, *timeout)
		}
	},
}

func wait(url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	last := errors.New("no time for an attempt")
	for {
		attempt, done := context.WithTimeout(ctx, 3*time.Second)
		err := kit.Request(attempt, http.MethodGet, url)
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return refusal{fmt.Errorf("not ready within %v: %w", timeout, last)}
		case <-time.After(200 * time.Millisecond):
		}
	}
}

var successorCommand = command{
	name:    "successor",
	usage:   "successor [FLAGS]",
	summary: "run another version of the proxy for the agent of the sidecar container (an ephemeral container)",
	long: `Successor runs in a container that is added to a running pod, with another image of the
proxy. It connects to the agent of the sidecar container, which starts the proxy here,
moves the pod's connections to it, and from then on signals and restarts it.

It exits when the agent does not need it any longer: with 0 if a later version of the
proxy has taken over or the pod ends, otherwise with 1. It ignores SIGTERM, which the
kubelet sends when the pod ends, since the agent must be able to drain the proxy.`,
	prepare: func(p *program, flags *flag.FlagSet) func([]string) error {
		socket := flags.String("socket", agentspec.SuccessorSocket, "`PATH` of the agent's socket")
		return func([]string) error {
			log := slog.New(slog.NewJSONHandler(p.stderr, nil))
			return handover.Run(*socket, log)
		}
	},
}
