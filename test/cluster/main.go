// Command cluster runs a real Kubernetes of one node on this machine, for the end-to-end
// tests: kube-apiserver, etcd, kube-controller-manager, kube-scheduler, kubelet, containerd,
// kube-proxy and CoreDNS, compiled from Go modules.
//
// Everything runs in its own network, mount, process and host name namespaces. The machine's
// network gets only one veth pair, through which the machine reaches the API server. When the
// first process of the namespaces ends, for whatever reason, the kernel kills all others and
// removes their mounts, bridges and rules.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const usage = `usage: cluster [flags] COMMAND [arguments]

Commands:
  up                        start the cluster, or do nothing if it runs, and print its kubeconfig
  down                      stop it and remove everything that belongs to it
  kubeconfig                print the path of its kubeconfig
  kubectl ARGUMENTS         run its kubectl
  run COMMAND ARGUMENTS     run a command of this machine in the network of the node, from which
                            the addresses of Services and pods are reachable
  load FILE|FOLDER...       load images: archives, or folders in the OCI image layout
  image NAME PATH=FILE...   build an image of programs of this machine, with the libraries that
                            they need, and load it
  kill CONTAINER PROGRAM    kill a program of a container with SIGKILL, given the container's id
  restart PROGRAM           restart a program of the cluster, such as kubelet
  stop PROGRAM              kill it and do not restart it until 'start PROGRAM'
  pause PROGRAM             suspend it until 'resume PROGRAM'

Flags:
`

// cluster is a cluster, running or not.
type cluster struct {
	// name distinguishes the clusters of one machine.
	name string
	// dir is the folder of all its files.
	dir string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
			os.Exit(1)
		}
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	name := flags.String("name", "e2e", "name of the cluster; clusters with different names can run at once")
	timeout := flags.Duration("timeout", 5*time.Minute, "timeout for the start, without compiling")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return flag.ErrHelp
	}
	if os.Getuid() != 0 {
		return errors.New("the kubelet needs root: run this as root, or set KUBECONFIG to test on another cluster")
	}
	c := &cluster{name: *name, dir: filepath.Join("/var/tmp/outrigger-cluster", *name)}
	command, rest := flags.Arg(0), flags.Args()[1:]
	switch command {
	case "up":
		return c.up(ctx, *timeout)
	case "down":
		return c.down()
	case "kubeconfig":
		fmt.Println(c.kubeconfig())
		return nil
	case "kubectl":
		return c.kubectl(ctx, rest...)
	case "run":
		if len(rest) == 0 {
			return errors.New("run: give a command")
		}
		return c.runInNetwork(ctx, rest)
	case "load":
		return c.load(ctx, rest)
	case "image":
		if len(rest) < 2 {
			return errors.New("image: give a name and at least one PATH=FILE")
		}
		return c.addImage(ctx, rest[0], rest[1:])
	case "kill":
		if len(rest) != 2 {
			return errors.New("kill: give the id of a container and the name of a program in it")
		}
		return c.kill(rest[0], rest[1])
	case "restart", "stop", "start", "pause", "resume":
		if len(rest) != 1 {
			return fmt.Errorf("%s: give the name of one program", command)
		}
		return map[string]func(string) error{
			"restart": c.restart, "stop": c.stop, "start": c.start, "pause": c.pause, "resume": c.resume,
		}[command](rest[0])
	case "init":
		return c.init()
	}
	return fmt.Errorf("unknown command %q; -h lists the commands", command)
}

// path returns the path of a file of the cluster.
func (c *cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *cluster) kubeconfig() string { return c.path("kubeconfig") }
