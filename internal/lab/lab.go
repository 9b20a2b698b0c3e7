// Package lab is a machine with pods and no cluster. A pod is a network namespace
// with addresses of its own, and its containers are processes as a kubelet would
// start them: with the environment, volumes, user, capabilities and probes that
// its manifest says. Tests and the demo run the real programs of a mesh on it.
//
// A lab has a node, which is a network namespace too, so the machine's own network
// is never touched and several labs can run at once with the same addresses.
// Nothing of a lab has a name on the machine: namespaces, mounts and links last as
// long as processes and file descriptors, and end with the program that made them,
// also when that is killed.
//
// It needs the rights of root, or those that Enter gets for a user who has a range
// of user ids; Available says whether they are there.
//
// It knows nothing of any mesh: tokens, ConfigMaps and host names come from
// functions that its user gives it.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// ErrUnavailable says that this machine or this user cannot have a lab.
var ErrUnavailable = errors.New("the lab is not available")

// ErrClosed is the error of everything that is asked of a lab or a pod that has
// ended.
var ErrClosed = errors.New("it has ended")

// Options say what a lab has beside its pods. The zero value is a lab that starts
// no container: all applications are in the program itself.
type Options struct {
	// Images are what containers run, by image reference. A container whose image
	// is not here, or that has no command, is not started: its application lives in
	// this program and uses the pod's network. An init container must have one.
	Images map[string]Image
	// Token makes the token of a pod's service account for a serviceAccountToken
	// source. It is called from several goroutines, again when four fifths of expires
	// have gone by. Nil makes such a source an error.
	Token func(pod *corev1.Pod, audience string, expires time.Duration) (string, error)
	// ConfigMap returns the data of a ConfigMap and whether it exists. It is called
	// from several goroutines, when a pod starts and by Refresh. Nil means that there
	// are none.
	ConfigMap func(namespace, name string) (map[string]string, bool)
	// Hosts returns the names that pods and the node's processes find in /etc/hosts,
	// and Dial and Listen too. There is no DNS. It is called by New and by Refresh.
	Hosts func() map[string][]netip.Addr
	// NodeAddresses are the node's, each with the network that the pods are in. The
	// default is 198.18.0.1/16 and 2001:db8::1/64.
	NodeAddresses []netip.Prefix
	// Output returns where a container's standard output and standard error go, pod
	// being "namespace/name"; nil is nowhere. Each writer is used by one goroutine at
	// a time.
	Output func(pod, container string) io.Writer
	// Log gets what a kubelet would tell: restarts, failed probes. Nil is nowhere.
	Log *slog.Logger
}

// Image is what a container sees as its files, all of them read-only.
type Image struct {
	// Files and folders of the machine, by the path where the container has them.
	Files map[string]string
	// Entrypoint is the command where the container has none.
	Entrypoint []string
	// HostRoot adds the machine's /usr, /bin, /sbin, /lib and their like, for programs
	// that are linked dynamically.
	HostRoot bool
}

// Lab is a machine with pods. Its methods can be called from any goroutine.
type Lab struct {
	options Options
	log     *slog.Logger
	node    *Network
	machine *machine
	guard   *guard
	links   links

	mu sync.Mutex
	// hosts is what Options.Hosts said last.
	hosts     map[string][]netip.Addr
	pods      map[*Pod]struct{}
	processes map[*Running]struct{}
	closed    bool
	// made numbers what the lab makes.
	made int
}

// New makes a lab with a node and no pods. Its owner closes it.
func New(options Options) (*Lab, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	if len(options.NodeAddresses) == 0 {
		options.NodeAddresses = []netip.Prefix{netip.MustParsePrefix("198.18.0.1/16"), netip.MustParsePrefix("2001:db8::1/64")}
	}
	l := &Lab{
		options:   options,
		log:       options.Log,
		pods:      make(map[*Pod]struct{}),
		processes: make(map[*Running]struct{}),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := l.make(); err != nil {
		return nil, errors.Join(fmt.Errorf("making a lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) make() error {
	var err error
	if l.machine, err = newMachine(); err != nil {
		return err
	}
	if l.guard, err = startGuard(l.machine); err != nil {
		return err
	}
	if l.node, err = newNetwork(l, "the node", bridge); err != nil {
		return err
	}
	if err := l.links.makeNode(l.node, l.options.NodeAddresses); err != nil {
		return err
	}
	l.readHosts()
	return l.machine.writeFile(nodeHosts, hostsFile(nil, l.hosts))
}

// Node returns the network of the node, which reaches all pods.
func (l *Lab) Node() *Network { return l.node }

// Refresh reads Options.Hosts and Options.ConfigMap again and changes the files of
// all pods and of the node's processes accordingly, as a kubelet does now and then.
func (l *Lab) Refresh() error {
	l.readHosts()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("refreshing the lab: %w", ErrClosed)
	}
	hosts := l.hosts
	var pods []*Pod
	for pod := range l.pods {
		pods = append(pods, pod)
	}
	l.mu.Unlock()

	errs := []error{l.machine.writeFile(nodeHosts, hostsFile(nil, hosts))}
	for _, pod := range pods {
		errs = append(errs, pod.refresh(hosts))
	}
	return errors.Join(errs...)
}

func (l *Lab) readHosts() {
	var hosts map[string][]netip.Addr
	if l.options.Hosts != nil {
		hosts = l.options.Hosts()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts = hosts
}

// lookup returns the addresses that a name has in the lab.
func (l *Lab) lookup(name string) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[name]
}

// number returns a number that nothing else in the lab has, or an error when the
// lab has been closed.
func (l *Lab) number() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, fmt.Errorf("the lab: %w", ErrClosed)
	}
	l.made++
	return l.made, nil
}

// Close kills everything that runs in the lab at once and takes the lab away. To
// let a pod end in its own time, stop it before. A second call does nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	pods, processes := l.pods, l.processes
	l.pods, l.processes = nil, nil
	l.mu.Unlock()

	// A stop whose time is over kills.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var group errgroup.Group
	errs := make(chan error, len(pods)+len(processes))
	for pod := range pods {
		group.Go(func() error { errs <- pod.stop(over); return nil })
	}
	for process := range processes {
		group.Go(func() error { errs <- process.close(); return nil })
	}
	_ = group.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if l.node != nil {
		l.node.close()
	}
	if l.guard != nil {
		all = append(all, l.guard.stop())
	}
	if l.machine != nil {
		all = append(all, l.machine.close())
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("closing the lab: %w", err)
	}
	return nil
}

// writer returns where a container's output goes.
func (l *Lab) writer(pod, container string) io.Writer {
	if l.options.Output == nil {
		return nil
	}
	return l.options.Output(pod, container)
}

// closeAll closes files that are there.
func closeAll(files ...*os.File) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
