// Package cni redirects pods' traffic on the node, so that no pod needs NET_ADMIN. One
// program has two roles: the container runtime runs it as the last plug-in of the
// network's chain, and a DaemonSet runs it to install it and keep it installed.
//
// The plug-in gets the pod's annotations from the runtime, including the redirection that
// the injector set. So it depends on no API server, credentials or daemon, and no pod
// waits for one. A pod whose network was created without the plug-in does not start: its
// init container checks for the rules.
package cni

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Name is the name of the program and of its file on the node, and the plug-in's type.
const Name = "outrigger-cni"

// The program's exit codes.
const (
	exitOK      = 0
	exitFailed  = 1
	exitMisused = 2
)

const overview = `outrigger-cni redirects pods' traffic on the node. The container runtime runs it as a
CNI plug-in, without arguments; the DaemonSet outrigger-cni runs it to install it.

Usage:
  outrigger-cni run [FLAGS]     install the plug-in, keep it installed, repair pods
  outrigger-cni ready [FLAGS]   succeed if the plug-in is installed (a readiness probe)
  outrigger-cni remove [FLAGS]  remove the plug-in from the node

See 'outrigger-cni COMMAND --help'.
`

// Main runs a command, given without the program's name, or the plug-in if the container
// runtime has set its environment variables. It returns the exit code.
func Main(args []string) int {
	if len(args) == 0 && os.Getenv("CNI_COMMAND") != "" {
		return plugin()
	}
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, overview)
		return exitMisused
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return command(ctx, args[0], args[1:], os.Stdout, os.Stderr)
}

func command(ctx context.Context, name string, args []string, stdout, stderr io.Writer) int {
	var do func(*node) error
	switch name {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, overview)
		return exitOK
	case "run":
		do = func(n *node) error { return n.run(ctx) }
	case "ready":
		do = func(n *node) error { return n.ready() }
	case "remove":
		do = func(n *node) error { return n.remove() }
	default:
		fmt.Fprintf(stderr, "error: unknown command %q\n\n%s", name, overview)
		return exitMisused
	}
	n := &node{
		program: "/proc/self/exe", accountDir: "/var/run/secrets/kubernetes.io/serviceaccount",
		every: time.Second, leaveTime: 15 * time.Second, log: slog.New(slog.NewTextHandler(stderr, nil)),
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&n.binDir, "bin-dir", "/host/bin", "`FOLDER` of the node's CNI plug-ins")
	flags.StringVar(&n.confDir, "conf-dir", "/host/conf", "`FOLDER` of the node's CNI configuration")
	flags.StringVar(&n.confName, "conf-name", "", "`FILE` of that folder to add the plug-in to; empty means the first one, which the container runtime uses")
	flags.StringVar(&n.resultsDir, "results-dir", "/host/results", "`FOLDER` where the container runtime records the pods' networks")
	flags.BoolVar(&n.repair, "repair", true, "redirect the traffic of pods whose network was created without the plug-in")
	flags.StringVar(&n.daemonSet, "daemonset", "", "`NAMESPACE/NAME` of the DaemonSet that runs this: if it is gone when the program is stopped, the plug-in is removed from the node; empty leaves it there")
	if err := flags.Parse(args); err != nil {
		return exitMisused
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "error: outrigger-cni %s: unknown argument %q\n", name, flags.Arg(0))
		return exitMisused
	}
	if n.daemonSet != "" && strings.Count(n.daemonSet, "/") != 1 {
		fmt.Fprintf(stderr, "error: outrigger-cni %s: --daemonset: %q is not NAMESPACE/NAME\n", name, n.daemonSet)
		return exitMisused
	}
	if err := do(n); err != nil {
		fmt.Fprintf(stderr, "error: outrigger-cni %s: %v\n", name, err)
		return exitFailed
	}
	return exitOK
}
