// Command cluster runs a real Kubernetes of one node on this machine, for the end-to-end
// tests: kube-apiserver, etcd, kube-controller-manager, kube-scheduler, kubelet, containerd,
// kube-proxy and CoreDNS, compiled from Go modules.
//
// Everything runs in network, mount, process and host name namespaces of its own. Nothing of
// the machine's network is changed but for one veth pair, by which the machine reaches the
// API server, and when the first process of the namespaces ends, whatever the reason, the
// kernel ends all others and takes their mounts, bridges and rules away.
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
  down                      end it and remove everything that belongs to it
  kubeconfig                print the path of its kubeconfig
  kubectl ARGUMENTS         run its kubectl
  load FILE|FOLDER...       give it images: archives, or folders of the OCI image layout
  image NAME PATH=FILE...   make an image of programs of this machine, with the libraries that
                            they need, and give it to the cluster
  kill CONTAINER PROGRAM    end a program of a container by SIGKILL, given the container's id
  restart PROGRAM           end a program of the cluster, such as kubelet, which starts it anew
  stop PROGRAM              end it until 'start PROGRAM'

Flags:
`

// cluster is one that runs or may run.
type cluster struct {
	// name tells several clusters of one machine apart.
	name string
	// dir holds all of its files.
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
	name := flags.String("name", "e2e", "name of the cluster, by which several run at once")
	timeout := flags.Duration("timeout", 5*time.Minute, "how long starting may take, without compiling")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return flag.ErrHelp
	}
	if os.Getuid() != 0 {
		return errors.New("a kubelet needs root: run this as root, or give the tests another cluster by KUBECONFIG")
	}
	c := &cluster{name: *name, dir: filepath.Join("/var/tmp/outrigger-cluster", *name)}
	command, rest := flags.Arg(0), flags.Args()[1:]
	switch command {
	case "up":
		ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("the cluster did not start in %s; its programs' logs are in %s", *timeout, c.path("log")))
		defer cancel()
		return c.up(ctx)
	case "down":
		return c.down()
	case "kubeconfig":
		fmt.Println(c.kubeconfig())
		return nil
	case "kubectl":
		return c.kubectl(ctx, rest...)
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
	case "restart", "stop", "start":
		if len(rest) != 1 {
			return fmt.Errorf("%s: give the name of one program", command)
		}
		return map[string]func(string) error{"restart": c.restart, "stop": c.stop, "start": c.start}[command](rest[0])
	case "init":
		return c.init()
	}
	return fmt.Errorf("there is no command %q; -h lists them", command)
}

// path returns the path of a file of the cluster.
func (c *cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *cluster) kubeconfig() string { return c.path("kubeconfig") }
