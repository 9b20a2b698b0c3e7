package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// up starts the cluster, after it has removed the remains of an earlier one with that name.
func (c *cluster) up(ctx context.Context, timeout time.Duration) error {
	within := func() (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the cluster did not start in %s; its programs' logs are in %s", timeout, c.path("log")))
	}
	if _, running := c.pid(); running {
		ctx, cancel := within()
		defer cancel()
		if err := c.wait(ctx); err != nil {
			return err
		}
		fmt.Println(c.kubeconfig())
		return nil
	}
	for _, program := range []string{"runc", "nft", "ip", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the program %s is not installed: on Debian, 'apt-get install runc nftables iproute2 mount'", program)
		}
	}
	if err := c.down(); err != nil {
		return err
	}
	began := time.Now()
	if err := c.collectPrograms(ctx); err != nil {
		return err
	}
	// Compiling, which takes longer, is not part of the start.
	ctx, cancel := within()
	defer cancel()
	if err := c.writeConfig(); err != nil {
		return err
	}
	if err := c.startInit(); err != nil {
		return errors.Join(err, c.down())
	}
	if err := c.connect(ctx); err != nil {
		return errors.Join(err, c.down())
	}
	if err := c.wait(ctx); err != nil {
		// Keep it running, so that its logs and objects can be inspected.
		return err
	}
	fmt.Fprintf(os.Stderr, "the cluster %s is ready after %s\n", c.name, time.Since(began).Round(time.Second))
	fmt.Println(c.kubeconfig())
	return nil
}

// collectPrograms compiles the programs if necessary and links all of them into one folder.
func (c *cluster) collectPrograms(ctx context.Context) error {
	source, err := sourceDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.path("bin"), 0o755); err != nil {
		return err
	}
	for _, set := range []string{"apiserver", "containerd", "node"} {
		cmd := exec.Command(filepath.Join(source, "build.sh"), set)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("compiling the programs of %s: %w", set, err)
		}
		dir := strings.TrimSpace(string(out))
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := os.Symlink(filepath.Join(dir, e.Name()), c.path("bin", e.Name())); err != nil && !os.IsExist(err) {
				return err
			}
		}
	}
	return ctx.Err()
}

// sourceDir returns the folder of this program's source, in which it must be started.
func sourceDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "build.sh")); err != nil {
		return "", fmt.Errorf("run this in test/cluster: %w", err)
	}
	return dir, nil
}

// startInit starts this program again as the first process of new namespaces.
func (c *cluster) startInit() error {
	log, err := os.Create(c.path("log", "cluster.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// 'go run' removes its program when it ends.
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("cluster"), program, 0o755); err != nil {
		return err
	}
	cmd := exec.Command(c.path("cluster"), "-name", c.name, "init")
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = append(os.Environ(), "PATH="+c.path("bin")+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("creating namespaces: %w", err)
	}
	start, err := startTime(cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return os.WriteFile(c.path("pid"), fmt.Appendf(nil, "%d %s\n", cmd.Process.Pid, start), 0o644)
}

// pid returns the first process of the cluster's namespaces, and whether it runs. Its start
// time distinguishes it from another process with the same number.
func (c *cluster) pid() (pid int, running bool) {
	text, err := os.ReadFile(c.path("pid"))
	if err != nil {
		return 0, false
	}
	number, start, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if pid, err = strconv.Atoi(number); err != nil {
		return 0, false
	}
	now, err := startTime(pid)
	return pid, err == nil && now == start
}

// startTime returns when a process started, in clock ticks since the machine's start.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The program's name may contain blanks and parentheses; later fields do not.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

// hash distinguishes the clusters' networks.
func (c *cluster) hash() uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.name))
	return h.Sum32()
}

// network returns the addresses of the two ends of the veth pair between the machine and the
// node, which depend on the cluster's name.
func (c *cluster) network() (machine, node netip.Addr) {
	// 198.18.0.0/15 is reserved for benchmarks, and not routed.
	base := netip.AddrFrom4([4]byte{198, 18, byte(c.hash() >> 8), byte(c.hash()) &^ 3})
	return base.Next(), base.Next().Next()
}

// link returns the name of the machine's end of the veth pair, of at most 15 bytes.
func (c *cluster) link() string { return fmt.Sprintf("outr-%08x", c.hash()) }

// connect creates the veth pair; the node's end is called eth0.
func (c *cluster) connect(ctx context.Context) error {
	pid, running := c.pid()
	if !running {
		return fmt.Errorf("the cluster's first process has ended; see %s", c.path("log", "cluster.log"))
	}
	machine, _ := c.network()
	for _, args := range [][]string{
		{"link", "add", c.link(), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(pid)},
		{"addr", "add", machine.String() + "/30", "dev", c.link()},
		{"link", "set", c.link(), "up"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// wait returns when the node is ready and DNS works.
func (c *cluster) wait(ctx context.Context) error {
	steps := []struct {
		what string
		args []string
	}{
		{"the API server answers", []string{"get", "--raw", "/readyz"}},
		{"the default service account exists", []string{"get", "serviceaccount", "default", "-n", "default"}},
		{"the node is registered", []string{"get", "node", nodeName}},
		{"the node is ready", []string{"wait", "node", nodeName, "--for=condition=Ready", "--timeout=5s"}},
		{"the cluster's own images are loaded", nil},
		{"CoreDNS is installed", []string{"apply", "-f", c.path("config", "coredns.yaml")}},
		{"CoreDNS serves", []string{"rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=5s"}},
	}
	for _, step := range steps {
		for {
			var out []byte
			var err error
			if step.args == nil {
				err = c.loadOwn(ctx)
			} else {
				out, err = c.kubectlCommand(ctx, step.args...).CombinedOutput()
			}
			if err == nil {
				break
			}
			if _, running := c.pid(); !running {
				return fmt.Errorf("the cluster's first process has ended; see %s", c.path("log", "cluster.log"))
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting until %s: %w: %w: %s", step.what, context.Cause(ctx), err, bytes.TrimSpace(out))
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return nil
}

func (c *cluster) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.path("bin", "kubectl"), append([]string{"--kubeconfig", c.kubeconfig()}, args...)...)
}

func (c *cluster) kubectl(ctx context.Context, args ...string) error {
	cmd := c.kubectlCommand(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// runInNetwork runs a command of this machine in the network namespace of the node.
func (c *cluster) runInNetwork(ctx context.Context, command []string) error {
	pid, running := c.pid()
	if !running {
		return errors.New("the cluster is not running; start it with 'up'")
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(pid), "-n", "--"}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// restart terminates a program, which the cluster's first process then starts again.
func (c *cluster) restart(program string) error { return c.signal(program, "-TERM") }

// signal sends a signal to a program of the cluster.
func (c *cluster) signal(program, signal string) error {
	text, err := os.ReadFile(c.path("pids", program))
	if err != nil {
		return fmt.Errorf("%s is not a running program of the cluster: %w", program, err)
	}
	initPID, running := c.pid()
	if !running {
		return errors.New("the cluster is not running")
	}
	inside, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	// The number is from the cluster's process namespace.
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(initPID), "-p", "-m", "kill", signal, strconv.Itoa(inside)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("sending %s to %s: %w: %s", signal, program, err, bytes.TrimSpace(out))
	}
	return nil
}

// pause suspends a program, and resume lets it continue.
func (c *cluster) pause(program string) error  { return c.signal(program, "-STOP") }
func (c *cluster) resume(program string) error { return c.signal(program, "-CONT") }

// stop kills a program, which is not restarted before start.
func (c *cluster) stop(program string) error {
	if err := os.WriteFile(held(c.dir, program), nil, 0o644); err != nil {
		return err
	}
	return c.signal(program, "-KILL")
}

// start starts a program that was stopped.
func (c *cluster) start(program string) error {
	err := os.Remove(held(c.dir, program))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s was not stopped", program)
	}
	return err
}

// down stops the cluster and removes its files and cgroups, as far as they exist.
func (c *cluster) down() error {
	if pid, running := c.pid(); running {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending the cluster's first process: %w", err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; {
			if _, running := c.pid(); !running {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d of the cluster does not end", pid)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	// The pair is removed with the namespace, unless the start failed before.
	_ = exec.Command("ip", "link", "delete", c.link()).Run()
	if err := c.removeCgroups(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := os.RemoveAll(c.dir)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		// Mounts of ending processes keep their files in use for a moment.
		time.Sleep(100 * time.Millisecond)
	}
}
