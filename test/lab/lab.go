// Package lab runs pods on this machine without a cluster. A pod is a network namespace
// with its own addresses, and its containers are processes, started as a kubelet would:
// with the environment, volumes, user, capabilities and probes of the manifest. Tests and
// the demo run the real programs of a mesh on it.
//
// A lab's node is a network namespace too, so the machine's network is never changed, and
// several labs with the same addresses can run at once. Nothing of a lab has a name on the
// machine: namespaces, mounts and links exist only as long as processes and file
// descriptors, and end with the program that created them, even if it is killed.
//
// A lab needs root, or a user with a range of subordinate user IDs who calls Enter;
// Available checks this.
//
// It knows nothing of meshes: tokens, ConfigMaps and host names come from functions in
// its Options.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ErrUnavailable means that this machine or user cannot run a lab.
var ErrUnavailable = errors.New("the lab is not available")

// ErrClosed is returned by the methods of a lab or a pod that has ended.
var ErrClosed = errors.New("it has ended")

// Options are the settings of a lab. The zero value is a lab that starts no containers:
// all applications run in this program.
type Options struct {
	// Images are the images of containers, by reference. A container whose image is
	// missing or that has no command is not started: its application runs in this
	// program and uses the pod's network. Init containers must have an image.
	Images map[string]Image
	// Token creates the token for a serviceAccountToken source. It is called from
	// several goroutines, and again after four fifths of expires. If it is nil, such a
	// source is an error.
	Token func(pod *corev1.Pod, audience string, expires time.Duration) (string, error)
	// ConfigMap returns the data of a ConfigMap and whether it exists. It is called
	// from several goroutines, when a pod starts and by Refresh. Nil means that there
	// are none.
	ConfigMap func(namespace, name string) (map[string]string, bool)
	// Secret returns the data of a Secret, as ConfigMap does.
	Secret func(namespace, name string) (map[string]string, bool)
	// Hosts returns the names in /etc/hosts of pods and of the node's processes, which
	// Dial and Listen also resolve. It is called by New and by
	// Refresh.
	Hosts func() map[string][]netip.Addr
	// PodHosts returns more names for one pod, such as those that its resolver's search list
	// would complete. It is called when the pod starts, by Refresh, and when a name is
	// resolved; nil means that there are none.
	PodHosts func(pod *corev1.Pod) map[string][]netip.Addr
	// ResolvConf returns the content of a pod's /etc/resolv.conf. Nil means one that names no
	// server.
	ResolvConf func(pod *corev1.Pod) string
	// NodeAddresses are the node's addresses, each with the network of the pods. The
	// default is 198.18.0.1/16 and 2001:db8::1/64.
	NodeAddresses []netip.Prefix
	// Output returns the writer for a container's standard output and standard error,
	// given the pod as "namespace/name"; nil discards them. Each writer is used by one
	// goroutine at a time.
	Output func(pod, container string) io.Writer
	// Log receives what a kubelet would report: restarts, failed probes. Nil discards
	// it.
	Log *slog.Logger
}

// Image is the files of a container, all of them read-only.
type Image struct {
	// Files are files and folders of the machine, by their path in the container.
	Files map[string]string
	// Entrypoint is the command if the container has none.
	Entrypoint []string
	// HostRoot adds the machine's /usr, /bin, /sbin, /lib and similar folders, for
	// dynamically linked programs.
	HostRoot bool
	// Root is a folder of the machine whose files are those of the container: "/" or the
	// files of an unpacked image. What programs write is never kept there: /tmp and /run
	// are empty folders of the container, and so are the folders in /var/cache, /var/lib,
	// /var/log and /var/spool, with their owners.
	Root string
}

// Lab is a machine with pods. Its methods are safe for concurrent use.
type Lab struct {
	options Options
	log     *slog.Logger
	node    *Network
	machine *machine
	guard   *guard
	links   links

	mu sync.Mutex
	// hosts is the last result of Options.Hosts.
	hosts     map[string][]netip.Addr
	pods      map[*Pod]struct{}
	processes map[*Running]struct{}
	closed    bool
	// made is the last number given out.
	made int
}

// New creates a lab with a node and no pods. The caller must close it.
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
		return nil, errors.Join(fmt.Errorf("creating a lab: %w", err), l.Close())
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

// Node returns the node's network, which can reach all pods.
func (l *Lab) Node() *Network { return l.node }

// Refresh calls Options.Hosts and Options.ConfigMap again and updates the files of all
// pods and of the node's processes, as a kubelet does periodically.
func (l *Lab) Refresh() error {
	l.readHosts()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("refreshing the lab: %w", ErrClosed)
	}
	hosts := l.hosts
	pods := slices.Collect(maps.Keys(l.pods))
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

// lookup returns the addresses of a name in the lab.
func (l *Lab) lookup(name string) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[name]
}

// number returns a number that is unique in the lab, or an error if the lab is closed.
func (l *Lab) number() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, fmt.Errorf("the lab: %w", ErrClosed)
	}
	l.made++
	return l.made, nil
}

// Close kills everything in the lab immediately and removes the lab. For a graceful end,
// stop the pods first. A second call does nothing.
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

	// With an ended context, stop kills.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var group sync.WaitGroup
	errs := make(chan error, len(pods)+len(processes))
	for pod := range pods {
		group.Go(func() { errs <- pod.stop(over) })
	}
	for process := range processes {
		group.Go(func() { errs <- process.close() })
	}
	group.Wait()
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

// writer returns the writer for a container's output, or nil.
func (l *Lab) writer(pod, container string) io.Writer {
	if l.options.Output == nil {
		return nil
	}
	return l.options.Output(pod, container)
}

// closeAll closes the files that are not nil.
func closeAll(files ...*os.File) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
