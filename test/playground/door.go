package playground

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// doors make the ports of gateways reachable from this machine, whose network the mesh does not share:
// connections to a port of this machine go to a pod of the gateway.
type doors struct {
	mesh *localmesh.Mesh
	// host is the address of this machine at which they listen.
	host string
	say  func(line string)
	log  *slog.Logger

	tasks sync.WaitGroup
	// open are the doors that are open, and refused those that cannot be.
	open    map[doorKey]net.Listener
	refused map[doorKey]bool
}

// doorKey is a port of a gateway.
type doorKey struct {
	gateway string
	port    uint16
}

// serve opens and closes doors as pods of gateways come and go, until ctx ends.
func (d *doors) serve(ctx context.Context) error {
	d.open, d.refused = map[doorKey]net.Listener{}, map[doorKey]bool{}
	defer d.tasks.Wait()
	defer func() {
		for _, listener := range d.open {
			_ = listener.Close()
		}
	}()
	for {
		d.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollFiles):
		}
	}
}

func (d *doors) look(ctx context.Context) {
	found := map[doorKey]bool{}
	for _, name := range d.mesh.Pods() {
		pod := d.mesh.Pod(name)
		if pod == nil {
			continue
		}
		for _, key := range doorsOf(pod.Object()) {
			found[key] = true
			if d.open[key] == nil && !d.refused[key] {
				d.listen(ctx, key)
			}
		}
	}
	for key, listener := range d.open {
		if !found[key] {
			_ = listener.Close()
			delete(d.open, key)
		}
	}
}

// doorsOf returns the ports of the gateway that a pod is one of.
func doorsOf(pod *corev1.Pod) []doorKey {
	gateway := localmesh.GatewayOf(pod)
	if gateway == "" {
		return nil
	}
	var keys []doorKey
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Protocol == "" || port.Protocol == corev1.ProtocolTCP {
				keys = append(keys, doorKey{pod.Namespace + "/" + gateway, uint16(port.ContainerPort)})
			}
		}
	}
	return keys
}

// portShift is added to ports that need rights on this machine: 80 becomes 8080, and 443 becomes 8443.
const portShift = 8000

// listen opens a door at the port of that number, or at another one if it is taken.
func (d *doors) listen(ctx context.Context, key doorKey) {
	port := int(key.port)
	if port < 1024 {
		port += portShift
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(d.host, strconv.Itoa(port)))
	if err != nil {
		listener, err = net.Listen("tcp", net.JoinHostPort(d.host, "0"))
	}
	if err != nil {
		d.refused[key] = true
		d.log.Warn("a port of a gateway cannot be reached from this machine", "gateway", key.gateway, "port", key.port, "error", err)
		return
	}
	d.open[key] = listener
	d.say(fmt.Sprintf("Port %d of Gateway %s is at %s; browsers and curl also find it by names that end in .localhost.", key.port, key.gateway, listener.Addr()))
	d.tasks.Go(func() { d.accept(ctx, key, listener) })
}

// mostConnections bounds the connections through a door.
const mostConnections = 1000

func (d *doors) accept(ctx context.Context, key doorKey, listener net.Listener) {
	var connections sync.WaitGroup
	defer connections.Wait()
	places := make(chan struct{}, mostConnections)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				d.log.Warn("a port of a gateway cannot be reached any longer", "gateway", key.gateway, "port", key.port, "error", err)
			}
			return
		}
		select {
		case places <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		connections.Go(func() {
			defer func() { <-places }()
			d.forward(ctx, key, conn.(*net.TCPConn))
		})
	}
}

// forward copies both ways until both ends have closed, or ctx ends.
func (d *doors) forward(ctx context.Context, key doorKey, client *net.TCPConn) {
	defer client.Close()
	gateway, err := d.dial(ctx, key)
	if err != nil {
		d.log.Warn("a gateway cannot be reached", "gateway", key.gateway, "port", key.port, "error", err)
		return
	}
	defer gateway.Close()
	defer context.AfterFunc(ctx, func() { _, _ = client.Close(), gateway.Close() })()
	var ways sync.WaitGroup
	way := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_, _ = client.Close(), gateway.Close()
	}
	ways.Go(func() { way(gateway, client) })
	way(client, gateway)
	ways.Wait()
}

// dial connects with the first pod of the gateway that takes the connection.
func (d *doors) dial(ctx context.Context, key doorKey) (net.Conn, error) {
	err := errors.New("it has no pod")
	for _, name := range d.mesh.Pods() {
		pod := d.mesh.Pod(name)
		if pod == nil || !slices.Contains(doorsOf(pod.Object()), key) {
			continue
		}
		var conn net.Conn
		if conn, err = dialPod(ctx, d.mesh.Lab().Node(), pod.Addresses(), key.port); err == nil {
			return conn, nil
		}
		err = fmt.Errorf("pod %s: %w", name, err)
	}
	return nil, err
}

func dialPod(ctx context.Context, node *lab.Network, addresses []netip.Addr, port uint16) (net.Conn, error) {
	if len(addresses) == 0 {
		return nil, errors.New("it has no address")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return node.Dial(ctx, "tcp", netip.AddrPortFrom(addresses[0], port).String())
}
