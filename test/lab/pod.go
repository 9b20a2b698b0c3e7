package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is a running pod. Its methods are safe for concurrent use.
type Pod struct {
	// Network is the pod's network.
	*Network
	object    *corev1.Pod
	addresses []netip.Addr
	// dir is its folder in the lab's file system, and link the name of its link on the
	// node.
	dir, link  string
	volumes    map[string]*volume
	containers []*Container

	mu sync.Mutex
	// prepared says that the files exist that refresh updates.
	prepared bool
	// detour delays the pod's packets, or is nil.
	detour *detour

	// started is closed when the start of the pod has succeeded or failed.
	started chan struct{}
	// context ends when the pod is stopped.
	context context.Context
	cancel  context.CancelFunc
	// tasks are the pod's goroutines.
	tasks sync.WaitGroup
	// finished is closed when all containers have ended for good.
	finished chan struct{}

	stopping sync.Once
	stopErr  error
}

// StartPod starts a pod as a kubelet does: its network and volumes; the init containers
// in order, waiting for the startup probes of native sidecars; then the containers, each
// after the postStart hook of the previous one. It does not wait until they are ready.
// Failed containers are restarted according to the pod's restart policy until ctx ends; a
// container that cannot be started at all is an error immediately. After an error nothing
// of the pod is left.
//
// The pod's addresses are those in its status. It needs at least one, which must be
// unique in the lab.
func (l *Lab) StartPod(ctx context.Context, pod *corev1.Pod) (*Pod, error) {
	p := &Pod{
		object:   pod.DeepCopy(),
		volumes:  make(map[string]*volume),
		started:  make(chan struct{}),
		finished: make(chan struct{}),
	}
	p.object.Namespace = cmp.Or(p.object.Namespace, corev1.NamespaceDefault)
	p.object.UID = cmp.Or(p.object.UID, uidOf(p.Name()))
	p.context, p.cancel = context.WithCancel(context.Background())
	if err := p.start(ctx, l); err != nil {
		p.cancel()
		return nil, fmt.Errorf("starting the pod %s: %w", p.Name(), err)
	}
	return p, nil
}

func (p *Pod) start(ctx context.Context, l *Lab) error {
	number, err := l.number()
	if err != nil {
		return err
	}
	if p.addresses, err = l.addressesOf(p.object); err != nil {
		return err
	}
	p.dir, p.link = path.Join(podsDir, strconv.Itoa(number)), fmt.Sprintf("pod%d", number)
	if p.Network, err = newNetwork(l, p.Name(), podEnd); err != nil {
		return err
	}
	p.own = map[string][]netip.Addr{p.hostname(): p.addresses}
	if l.options.PodHosts != nil {
		p.more = func() map[string][]netip.Addr { return l.options.PodHosts(p.object) }
	}
	for _, alias := range p.object.Spec.HostAliases {
		addr, err := netip.ParseAddr(alias.IP)
		if err != nil {
			return errors.Join(fmt.Errorf("its host aliases: %w", err), p.release())
		}
		for _, name := range alias.Hostnames {
			p.own[name] = append(p.own[name], addr)
		}
	}
	if err := l.add(p); err != nil {
		return errors.Join(err, p.release())
	}
	err = p.prepare()
	if err == nil {
		err = p.startContainers(ctx)
	}
	close(p.started)
	if err != nil {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		return errors.Join(err, p.stop(over))
	}
	return nil
}

// prepare creates the resources that the containers share.
func (p *Pod) prepare() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.lab.links.makePod(p.Network, p.link, p.addresses); err != nil {
		return err
	}
	machine := p.lab.machine
	if err := errors.Join(machine.mkdir(p.dir, 0o755), machine.mkdir(path.Join(p.dir, "volumes"), 0o755)); err != nil {
		return err
	}
	p.lab.mu.Lock()
	hosts := p.lab.hosts
	p.lab.mu.Unlock()
	if err := machine.writeFile(p.hostsFile(), p.hostsText(hosts)); err != nil {
		return err
	}
	for i := range p.object.Spec.Volumes {
		if !p.uses(p.object.Spec.Volumes[i].Name) {
			continue
		}
		v, err := p.newVolume(&p.object.Spec.Volumes[i])
		if v != nil {
			p.volumes[v.name] = v
		}
		if err != nil {
			return err
		}
	}
	p.prepared = true
	return p.makeContainers()
}

func (p *Pod) hostsFile() string { return path.Join(p.dir, "hosts") }

// hostsText returns the content of the pod's /etc/hosts. The first address of a name that is
// there twice wins, so the pod's own names come first.
func (p *Pod) hostsText(hosts map[string][]netip.Addr) []byte {
	if p.more == nil {
		return hostsFile(p.own, hosts)
	}
	more := maps.Clone(p.more())
	maps.DeleteFunc(more, func(name string, _ []netip.Addr) bool { return p.own[name] != nil })
	return hostsFile(p.own, more, hosts)
}

// uses reports whether a container that is started mounts the volume. Other volumes may be
// of kinds that the lab does not support.
func (p *Pod) uses(name string) bool {
	for _, containers := range [][]corev1.Container{p.object.Spec.InitContainers, p.object.Spec.Containers} {
		for i := range containers {
			if _, ok := p.lab.imageOf(&containers[i]); !ok {
				continue
			}
			if slices.ContainsFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name }) {
				return true
			}
		}
	}
	return false
}

// addressesOf returns the addresses in a pod's status.
func (l *Lab) addressesOf(pod *corev1.Pod) ([]netip.Addr, error) {
	var addresses []netip.Addr
	ips := pod.Status.PodIPs
	if len(ips) == 0 && pod.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	for _, ip := range ips {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, fmt.Errorf("its address: %w", err)
		}
		addr = addr.Unmap()
		if slices.ContainsFunc(l.links.nodes, func(node netip.Prefix) bool { return node.Addr() == addr }) {
			return nil, fmt.Errorf("its address %s is the node's; give it another", addr)
		}
		addresses = append(addresses, addr)
	}
	if len(addresses) == 0 {
		return nil, errors.New("its status has no address; write one to status.podIPs")
	}
	return addresses, nil
}

// add adds a pod to the lab, if its name and addresses are unique.
func (l *Lab) add(p *Pod) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("the lab: %w", ErrClosed)
	}
	for other := range l.pods {
		if other.Name() == p.Name() {
			return errors.New("it is running already; stop it first")
		}
		for _, addr := range p.addresses {
			if slices.Contains(other.addresses, addr) {
				return fmt.Errorf("its address %s is that of the pod %s", addr, other.Name())
			}
		}
	}
	l.pods[p] = struct{}{}
	return nil
}

// uidOf derives a UID from a name.
func uidOf(name string) types.UID {
	sum := sha256.Sum256([]byte(name))
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}

// Name returns "namespace/name".
func (p *Pod) Name() string { return p.object.Namespace + "/" + p.object.Name }

// Object returns a copy of the pod's manifest.
func (p *Pod) Object() *corev1.Pod { return p.object.DeepCopy() }

// Addresses returns the pod's addresses.
func (p *Pod) Addresses() []netip.Addr { return slices.Clone(p.addresses) }

// Container returns a container of any kind, or nil if the pod has none of that
// name. The methods of a nil Container return errors and zero values.
func (p *Pod) Container(name string) *Container {
	for _, c := range p.list() {
		if c.name == name {
			return c
		}
	}
	return nil
}

// refresh updates the pod's files.
func (p *Pod) refresh(hosts map[string][]netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.prepared {
		return nil
	}
	errs := []error{p.lab.machine.writeFile(p.hostsFile(), p.hostsText(hosts))}
	for _, v := range p.volumes {
		errs = append(errs, v.refresh())
	}
	if err := errors.Join(errs...); err != nil && p.context.Err() == nil {
		return fmt.Errorf("refreshing the pod %s: %w", p.Name(), err)
	}
	return nil
}

// keepTokens renews the tokens in the pod's volumes until the pod is stopped.
func (p *Pod) keepTokens() {
	for {
		var next *volume
		var due time.Time
		for _, v := range p.volumes {
			if at, ok := v.renewal(); ok && (next == nil || at.Before(due)) {
				next, due = v, at
			}
		}
		if next == nil || !sleep(p.context, time.Until(due)) {
			return
		}
		if err := next.refresh(); err != nil {
			p.lab.log.Warn("a token was not renewed", "pod", p.Name(), "error", err)
			if !sleep(p.context, time.Second) {
				return
			}
		}
	}
}

// sleep waits, and returns false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Stop ends the pod as a kubelet does: preStop hooks and SIGTERM for its containers and
// then for its native sidecars in reverse order, and SIGKILL after the pod's grace period
// or when ctx ends. Then it removes the pod's network. A second call waits for the first.
func (p *Pod) Stop(ctx context.Context) error {
	if err := p.stop(ctx); err != nil {
		return fmt.Errorf("stopping the pod %s: %w", p.Name(), err)
	}
	return nil
}

func (p *Pod) stop(ctx context.Context) error {
	p.stopping.Do(func() {
		p.cancel()
		<-p.started
		p.stopErr = errors.Join(p.terminate(ctx), p.release())
	})
	return p.stopErr
}

// release frees the pod's resources other than its containers.
func (p *Pod) release() error {
	p.tasks.Wait()
	p.mu.Lock()
	p.prepared = false
	errs := []error{p.detour.end(), p.lab.links.remove(p.link), p.lab.links.remove(detourOf(p.link))}
	p.mu.Unlock()
	for _, v := range p.volumes {
		errs = append(errs, v.remove())
	}
	errs = append(errs, p.lab.machine.files.RemoveAll(p.dir))
	p.Network.close()
	p.lab.mu.Lock()
	delete(p.lab.pods, p)
	p.lab.mu.Unlock()
	return errors.Join(errs...)
}
