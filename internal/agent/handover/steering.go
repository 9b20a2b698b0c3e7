package handover

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
)

// steering decides which of two processes gets the new connections to the endpoints on
// which both listen: the former process or its successor. Both need SO_REUSEPORT, and know
// nothing of it.
//
// The kernel keeps an array of the sockets that share an endpoint. A new socket is added at
// the end; when one is closed, the last one takes its place. A program that any of the
// sockets sets chooses an index. So the agent adds a socket of its own after those of the
// former process, through which it sets programs:
//
//	former ... | agent's | successor's ... | fillers ...
//
// The fillers are as many silent sockets as the former process has, and take their places when
// they are closed, so that the indexes of the successor's do not change. A connection never
// gets to a socket that is about to be closed, and none is lost: what a former socket has
// been given by then, its process still accepts.
//
// Between the calls that add or remove the agent's sockets, for microseconds, a connection
// may be given to one of them. It is dropped, and the client's kernel tries again a second
// later.
//
// The agent's sockets must be removed before the successor changes its own. Steering is safe
// for use by many goroutines once change has been called.
type steering struct {
	points map[socket.Endpoint]*point

	mu    sync.Mutex
	ended bool
}

// point is an endpoint of a steering.
type point struct {
	at socket.Endpoint
	// optional says that the successor need not listen here.
	optional bool
	// former and successor are the inodes of the processes' sockets.
	former, successor []uint64
	// socket is the agent's socket, and fillers the others that it has added.
	socket  int
	fillers []int
	own     []uint64
}

// startSteering begins to send all new connections to the former process, whose sockets are those
// of the agent's user that isFormer chooses. The successor need not listen on the optional
// addresses.
func startSteering(isFormer func(socket.Socket) bool, optional []netip.AddrPort) (*steering, error) {
	s := &steering{points: make(map[socket.Endpoint]*point)}
	sockets, err := socket.ListListening()
	if err != nil {
		return nil, err
	}
	for _, l := range sockets {
		if !isFormer(l) {
			continue
		}
		if s.points[l.At] == nil {
			s.points[l.At] = &point{at: l.At, optional: slices.Contains(optional, l.At.Addr), socket: -1}
		}
		p := s.points[l.At]
		p.former = append(p.former, l.Inode)
	}
	if len(s.points) == 0 {
		return nil, errors.New("the proxy does not listen")
	}
	for _, p := range s.points {
		if err := p.join(); err != nil {
			s.end()
			return nil, err
		}
	}
	if err := s.look(); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// join adds the agent's socket.
func (p *point) join() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, inode, err := socket.ListenSilently(p.at)
	if err != nil {
		return err
	}
	p.socket, p.own = fd, []uint64{inode}
	return p.toFormer()
}

// look finds the successor's sockets, and returns an error if those of the former process are not
// the same any more.
func (s *steering) look() error {
	found, err := s.find()
	if err != nil {
		return err
	}
	for _, p := range s.points {
		if found[p].former != len(p.former) {
			return fmt.Errorf("the proxy has closed a listening socket on %s", p.at)
		}
		p.successor = found[p].successor
	}
	return nil
}

// sharers are the sockets that share an endpoint with the agent's.
type sharers struct {
	// former is how many of the former process are left.
	former int
	// successor are the inodes of the successor's, in ascending order.
	successor []uint64
}

// find returns the sockets of both processes.
func (s *steering) find() (map[*point]sharers, error) {
	sockets, err := socket.ListListening()
	if err != nil {
		return nil, err
	}
	found := make(map[*point]sharers)
	for _, l := range sockets {
		p := s.points[l.At]
		if p == nil || slices.Contains(p.own, l.Inode) {
			continue
		}
		at := found[p]
		if slices.Contains(p.former, l.Inode) {
			at.former++
		} else {
			at.successor = append(at.successor, l.Inode)
		}
		found[p] = at
	}
	for _, at := range found {
		slices.Sort(at.successor)
	}
	return found, nil
}

// missing returns the endpoints on which the successor must listen and does not, as text.
func (s *steering) missing() string {
	var missing []string
	for _, p := range s.points {
		if len(p.successor) == 0 && !p.optional {
			missing = append(missing, p.at.String())
		}
	}
	slices.Sort(missing)
	return strings.Join(missing, ", ")
}

// isOver reports whether the former process does not listen any more, or the successor's sockets
// have changed, so that the program would choose others.
func (s *steering) isOver() (bool, error) {
	found, err := s.find()
	if err != nil {
		return false, err
	}
	listens := false
	for _, p := range s.points {
		if !slices.Equal(found[p].successor, p.successor) {
			return true, nil
		}
		listens = listens || found[p].former > 0
	}
	return !listens, nil
}

// hasConnections reports whether any of the sockets, sorted by their inodes, is a connection to one
// of the ports.
func (s *steering) hasConnections(inodes []uint64) (bool, error) {
	ports := make(map[uint16]bool)
	for at := range s.points {
		ports[at.Addr.Port()] = true
	}
	connections, err := socket.List(socket.StatesOpen)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(connections, func(c socket.Socket) bool {
		_, ok := slices.BinarySearch(inodes, c.Inode)
		return ok && ports[c.At.Addr.Port()]
	}), nil
}

// withFormer calls f while new connections to the port go to the former process.
func (s *steering) withFormer(port uint16, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errors.New("the proxy's connections are not directed any longer")
	}
	for _, p := range s.on(port) {
		if err := p.toFormer(); err != nil {
			return err
		}
	}
	err := f()
	for _, p := range s.on(port) {
		err = errors.Join(err, p.toSuccessor())
	}
	return err
}

// on returns the endpoints with the port.
func (s *steering) on(port uint16) []*point {
	var points []*point
	for _, p := range s.points {
		if p.at.Addr.Port() == port {
			points = append(points, p)
		}
	}
	return points
}

// toFormer sends new connections to the former process.
func (p *point) toFormer() error { return p.choose(0, len(p.former)) }

// toSuccessor sends new connections to the successor, whose sockets look has found.
func (p *point) toSuccessor() error { return p.choose(len(p.former)+1, len(p.successor)) }

// choose sends each new connection to one of the sockets with the indexes from first.
func (p *point) choose(first, count int) error {
	const random = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: random},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(count)},
		{Code: unix.BPF_ALU | unix.BPF_ADD | unix.BPF_K, K: uint32(first)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	err := unix.SetsockoptSockFprog(p.socket, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err != nil {
		return fmt.Errorf("directing the connections to %s: %w", p.at, err)
	}
	return nil
}

// change sends all new connections to the successor. From then on the former process may
// close its sockets at any time. Endpoints on which the successor does not listen end with the
// former process.
func (s *steering) change() error {
	for at, p := range s.points {
		if len(p.successor) == 0 {
			p.end()
			delete(s.points, at)
			continue
		}
		for range p.former {
			fd, inode, err := socket.ListenSilently(p.at)
			if err != nil {
				return err
			}
			p.fillers, p.own = append(p.fillers, fd), append(p.own, inode)
		}
	}
	counts := make(map[socket.Endpoint]int)
	for _, p := range s.points {
		counts[p.at] = len(p.successor)
	}
	if err := s.look(); err != nil {
		return err
	}
	for _, p := range s.points {
		if len(p.successor) != counts[p.at] {
			return fmt.Errorf("the new proxy has changed its sockets on %s", p.at)
		}
		if err := p.toSuccessor(); err != nil {
			return err
		}
	}
	return nil
}

// end removes the agent's sockets. From then on the kernel chooses among those that are left.
func (s *steering) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, p := range s.points {
		p.end()
	}
}

// end removes the agent's sockets from the endpoint.
func (p *point) end() {
	if p.socket < 0 {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.SetsockoptInt(p.socket, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	for _, fd := range append(p.fillers, p.socket) {
		_ = unix.Close(fd)
	}
	p.socket, p.fillers = -1, nil
}
