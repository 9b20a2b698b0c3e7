package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// The delay before a container is restarted: doubled each time, and reset after the
// container has run for backOffReset.
const (
	firstBackOff = 200 * time.Millisecond
	lastBackOff  = 5 * time.Second
	backOffReset = 10 * time.Second
)

// Container is a container of a pod. Its methods are safe for concurrent use.
type Container struct {
	pod     *Pod
	name    string
	spec    *corev1.Container
	kind    containerKind
	image   Image
	started bool
	output  *output

	// up is closed when the startup probe, if there is one, has passed.
	up   chan struct{}
	isUp sync.Once
	// over is closed when the container will not run again.
	over chan struct{}

	mu       sync.Mutex
	instance *instance
	// restarts counts starts after the first.
	restarts int
	stopping bool
	// startupError is the last error of the startup probe.
	startupError error
}

type containerKind int

const (
	initContainer containerKind = iota
	nativeSidecar
	mainContainer
	ephemeralContainer
)

// imageOf returns a container's image, and false if there is none or it has no command.
func (l *Lab) imageOf(of *corev1.Container) (Image, bool) {
	image, ok := l.options.Images[of.Image]
	return image, ok && len(of.Command)+len(image.Entrypoint) > 0
}

func (p *Pod) makeContainers() error {
	add := func(spec *corev1.Container, kind containerKind) error {
		c := &Container{
			pod: p, name: spec.Name, spec: spec, kind: kind,
			output: &output{to: p.lab.writer(p.Name(), spec.Name)},
			over:   make(chan struct{}), up: make(chan struct{}),
		}
		c.image, c.started = p.lab.imageOf(spec)
		if !c.started && kind != mainContainer {
			return c.wrap("starting", fmt.Errorf("the lab has no image %q with a command; give it one in Options.Images", spec.Image))
		}
		p.containers = append(p.containers, c)
		return nil
	}
	for i := range p.object.Spec.InitContainers {
		spec, kind := &p.object.Spec.InitContainers[i], initContainer
		if spec.RestartPolicy != nil && *spec.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			kind = nativeSidecar
		}
		if err := add(spec, kind); err != nil {
			return err
		}
	}
	for i := range p.object.Spec.Containers {
		if err := add(&p.object.Spec.Containers[i], mainContainer); err != nil {
			return err
		}
	}
	return nil
}

// startContainers starts the pod's containers in the order of a kubelet.
func (p *Pod) startContainers(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.context, cancel)()
	for _, c := range p.containers {
		var err error
		switch {
		case !c.started:
		case c.kind == initContainer:
			err = c.runToEnd(ctx)
		default:
			if err = c.startFirst(ctx); err == nil && c.kind == nativeSidecar {
				err = c.awaitStartup(ctx)
			}
		}
		if err != nil {
			return err
		}
	}
	p.tasks.Go(p.keepTokens)
	p.tasks.Go(p.awaitEnd)
	return nil
}

// AddEphemeral adds an ephemeral container with the image to the running pod and starts it. It
// is not restarted, and ends with the pod.
func (p *Pod) AddEphemeral(of *corev1.EphemeralContainer, image Image) (*Container, error) {
	spec := corev1.Container(of.DeepCopy().EphemeralContainerCommon)
	c := &Container{
		pod: p, name: spec.Name, spec: &spec, kind: ephemeralContainer, image: image, started: true,
		output: &output{to: p.lab.writer(p.Name(), spec.Name)},
		over:   make(chan struct{}), up: make(chan struct{}),
	}
	<-p.started
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.prepared || p.context.Err() != nil {
		return nil, c.wrap("starting", ErrClosed)
	}
	if slices.ContainsFunc(p.containers, func(other *Container) bool { return other.name == c.name }) {
		return nil, c.wrap("starting", errors.New("the pod has a container of that name"))
	}
	i, err := c.start()
	if err != nil {
		return nil, c.wrap("starting", err)
	}
	// The slice is copied, since others may range over it.
	p.containers = append(slices.Clone(p.containers), c)
	p.tasks.Go(func() {
		<-i.done
		close(c.over)
	})
	return c, nil
}

// list returns the pod's containers.
func (p *Pod) list() []*Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers
}

// wrap adds the container and its pod to an error.
func (c *Container) wrap(doing string, err error) error {
	return fmt.Errorf("%s the container %s of the pod %s: %w", doing, c.name, c.pod.Name(), err)
}

// start starts the container's process.
func (c *Container) start() (*instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping || c.pod.context.Err() != nil {
		return nil, ErrClosed
	}
	i, err := c.launch(c.arguments, c.output)
	if err != nil {
		return nil, err
	}
	c.instance = i
	return i, nil
}

func (c *Container) arguments(env []string) []string {
	entrypoint, args := c.image.Entrypoint, c.spec.Args
	if len(c.spec.Command) > 0 {
		entrypoint = c.spec.Command
	}
	return expandAll(slices.Concat(entrypoint, args), env)
}

// launch starts the container's first process, with the container's files.
func (c *Container) launch(arguments func(env []string) []string, to *output) (*instance, error) {
	pod := c.pod
	privilege, err := privilegeOf(pod.object, c.spec)
	if err != nil {
		return nil, err
	}
	env, err := pod.environment(c.spec)
	if err != nil {
		return nil, err
	}
	files := &rootfs{
		hosts:    "/" + pod.hostsFile(),
		etc:      map[string]string{"hostname": pod.hostname() + "\n", "resolv.conf": pod.resolvConf()},
		dir:      c.spec.WorkingDir,
		readOnly: privilege.readOnlyRoot,
	}
	if err := files.addImage(c.image); err != nil {
		return nil, err
	}
	if files.volumes, err = pod.mounts(c.spec, env); err != nil {
		return nil, err
	}
	namespace, err := pod.Network.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = namespace.Close() }()
	command := c.command(arguments(env), env, privilege, to)
	return start(command, func(calls *calls) error {
		if err := pod.lab.machine.enter(); err != nil {
			return err
		}
		if err := join(namespace, unix.CLONE_NEWNET); err != nil {
			return err
		}
		// The process that this thread starts is the first one in the PID namespace.
		if err := leave(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS); err != nil {
			return err
		}
		if err := unix.Sethostname([]byte(pod.hostname())); err != nil {
			return fmt.Errorf("setting the host name: %w", err)
		}
		if err := files.make(calls); err != nil {
			return err
		}
		return privilege.drop()
	})
}

// resolvConf returns the content of the pod's /etc/resolv.conf.
func (p *Pod) resolvConf() string {
	if p.lab.options.ResolvConf != nil {
		return p.lab.options.ResolvConf(p.object)
	}
	return resolvConf
}

// resolvConf names no server, so that unknown names fail immediately.
const resolvConf = "# The lab has no DNS: all names are in /etc/hosts.\noptions timeout:1 attempts:1\n"

func (c *Container) command(args, env []string, p *privilege, to *output) command {
	return command{args: args, env: env, dir: cmp.Or(c.spec.WorkingDir, "/"), as: p, output: to}
}

// Exec runs a command in the container, with its environment and privileges, and returns
// the output. The command is killed when ctx ends.
func (c *Container) Exec(ctx context.Context, args ...string) (string, error) {
	if c == nil {
		return "", errNoContainer
	}
	if len(args) == 0 {
		return "", c.wrap("executing in", errors.New("there is no command"))
	}
	out := new(output)
	i, err := c.exec(args, nil, out, nil)
	if err != nil {
		return "", c.wrap("executing "+args[0]+" in", err)
	}
	select {
	case <-i.done:
	case <-ctx.Done():
		_ = i.signal(syscall.SIGKILL)
		<-i.done
		return out.String(), c.wrap("executing "+args[0]+" in", fmt.Errorf("%w; %s", ctx.Err(), out.last()))
	}
	if code := i.code(); code != 0 {
		return out.String(), c.wrap("executing "+args[0]+" in", fmt.Errorf("it ended with code %d; %s", code, out.last()))
	}
	return out.String(), nil
}

// exec starts an additional process in the container, with more variables, and writes to the
// output unless there are files.
func (c *Container) exec(args, more []string, to *output, files *[3]*os.File) (*instance, error) {
	privilege, err := privilegeOf(c.pod.object, c.spec)
	if err != nil {
		return nil, err
	}
	env, err := c.pod.environment(c.spec)
	if err != nil {
		return nil, err
	}
	namespaces, err := c.namespaces()
	if err != nil {
		return nil, err
	}
	defer func() { _ = closeAll(namespaces...) }()
	command := c.command(args, append(env, more...), privilege, to)
	command.files = files
	return start(command, func(*calls) error {
		if err := leave(unix.CLONE_FS); err != nil {
			return err
		}
		for n, file := range namespaces {
			if err := join(file, execNamespaces[n].kind); err != nil {
				return err
			}
		}
		return privilege.drop()
	})
}

// execNamespaces are the namespaces that a container's processes share, in the order in
// which they can be joined.
var execNamespaces = []struct {
	name string
	kind int
}{
	{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS},
}

// namespaces opens the namespaces of the container's first process.
func (c *Container) namespaces() ([]*os.File, error) {
	i := c.current()
	if i == nil {
		return nil, errGone
	}
	var files []*os.File
	err := i.running(func(pid int) error {
		for _, namespace := range execNamespaces {
			f, err := os.Open(path.Join("/proc", strconv.Itoa(pid), "ns", namespace.name))
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, closeAll(files...))
	}
	return files, nil
}

var errNoContainer = errors.New("the pod has no such container")

func (c *Container) current() *instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instance
}

// PID returns the process ID of the container's first process on this machine, or 0 if it
// does not run.
func (c *Container) PID() int {
	if c == nil {
		return 0
	}
	pid := 0
	if i := c.current(); i != nil {
		_ = i.running(func(p int) error { pid = p; return nil })
	}
	return pid
}

// PIDs returns the process IDs on this machine of the container's processes whose program
// has this base name.
func (c *Container) PIDs(program string) ([]int, error) {
	if c == nil {
		return nil, errNoContainer
	}
	namespaces, err := c.namespaces()
	if err != nil {
		return nil, c.wrap("looking into", err)
	}
	defer func() { _ = closeAll(namespaces...) }()
	var stat unix.Stat_t
	for n, namespace := range execNamespaces {
		if namespace.name != "pid" {
			continue
		}
		if err := unix.Fstat(int(namespaces[n].Fd()), &stat); err != nil {
			return nil, c.wrap("looking into", err)
		}
	}
	pids, err := processesIn("pid", stat.Ino)
	if err != nil {
		return nil, c.wrap("looking into", err)
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		file, err := os.Readlink(path.Join("/proc", strconv.Itoa(pid), "exe"))
		return err != nil || strings.TrimSuffix(path.Base(file), " (deleted)") != program
	}), nil
}

// Restarts returns how often the container was restarted.
func (c *Container) Restarts() int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restarts
}

// Signal sends a signal to the container's first process.
func (c *Container) Signal(s syscall.Signal) error {
	if c == nil {
		return errNoContainer
	}
	i := c.current()
	if i == nil {
		return c.wrap("signalling", errGone)
	}
	if err := i.signal(s); err != nil {
		return c.wrap("signalling", err)
	}
	return nil
}

// Kill kills the container. The pod's restart policy applies.
func (c *Container) Kill() error { return c.Signal(syscall.SIGKILL) }

// Output returns the last 8 KiB of the container's output, including earlier runs.
func (c *Container) Output() string {
	if c == nil {
		return ""
	}
	return c.output.String()
}

// Wait waits until the container has ended for good, and returns its exit code.
func (c *Container) Wait(ctx context.Context) (int, error) {
	if c == nil {
		return 0, errNoContainer
	}
	if !c.started {
		return 0, c.wrap("waiting for", errors.New("it runs in this program"))
	}
	select {
	case <-c.over:
	case <-ctx.Done():
		return 0, c.wrap("waiting for", fmt.Errorf("%w; %s", ctx.Err(), c.output.last()))
	}
	if i := c.current(); i != nil {
		return i.code(), nil
	}
	return 0, c.wrap("waiting for", errGone)
}
