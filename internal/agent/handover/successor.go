package handover

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
)

// Run executes the agent's orders until the connection ends.
func Run(socket string, log *slog.Logger) error {
	kit.LimitResources()
	// Not ignored, since its children would inherit that.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("connecting to the agent of the sidecar container: %w", err)
	}
	defer conn.Close()
	children, err := process.NewChildren(nil, nil)
	if err != nil {
		return err
	}
	s := &successor{conn: conn, children: children, log: log, running: make(map[int]*process.Child)}
	defer s.killAll()
	log.Info("waiting for the agent", "socket", socket)
	buffer := make([]byte, maxPacket)
	takenOver := false
	for {
		var o order
		files, err := receivePacket(conn, buffer, &o)
		takenOver = takenOver || o.TakenOver
		if err == nil {
			err = s.execute(o, files)
		}
		for _, f := range files {
			f.Close()
		}
		switch {
		case errors.Is(err, io.EOF) && !takenOver:
			return errors.New("the agent of the sidecar container has ended before the proxy had taken over")
		case errors.Is(err, io.EOF):
			log.Info("the agent has closed the connection")
			return nil
		case err != nil:
			return err
		}
	}
}

// successor is the process in a successor's container.
type successor struct {
	conn     *net.UnixConn
	children *process.Children
	log      *slog.Logger

	mu      sync.Mutex // held while a message is sent
	running map[int]*process.Child
}

func (s *successor) send(n notice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sendPacket(s.conn, n)
}

func (s *successor) execute(o order, files []*os.File) error {
	s.mu.Lock()
	child := s.running[o.Of]
	s.mu.Unlock()
	switch {
	case o.Refused != "":
		return fmt.Errorf("the agent refuses this container: %s", o.Refused)
	case o.TakenOver:
		s.log.Info("the proxy has taken over")
	case o.Start != nil:
		return s.start(o, files)
	case o.Signal != 0 && child != nil:
		return child.Host.Signal(child, unix.Signal(o.Signal), o.Group)
	case o.Below || o.Sockets:
		err := s.send(s.describe(o, child))
		if errors.Is(err, errTooLong) {
			return s.send(notice{ID: o.ID, Error: err.Error()})
		}
		return err
	}
	return nil
}

// describe answers a question about a process, which is nil if it has ended.
func (s *successor) describe(o order, child *process.Child) notice {
	n := notice{ID: o.ID}
	switch {
	case child == nil:
	case o.Below:
		n.Below = child.Host.Below(child)
	default:
		var err error
		if n.Sockets, err = child.Host.Sockets(child, o.Only...); err != nil {
			n.Error = err.Error()
		}
	}
	return n
}

// start starts a process. The answer comes before the notice of its end.
func (s *successor) start(o order, files []*os.File) error {
	if len(o.Start.Argv) == 0 {
		return s.send(notice{ID: o.ID, Error: "there is no command"})
	}
	child, err := s.children.Launch(o.Start.Argv, o.Start.Env, files)
	if err != nil {
		return s.send(notice{ID: o.ID, Error: err.Error()})
	}
	s.mu.Lock()
	s.running[o.ID] = child
	s.mu.Unlock()
	if err := s.send(notice{ID: o.ID, PID: child.PID}); err != nil {
		return err
	}
	go func() {
		<-child.Ended
		s.mu.Lock()
		delete(s.running, o.ID)
		s.mu.Unlock()
		_ = s.send(notice{Of: o.ID, Status: child.Status})
	}()
	return nil
}

// killAll kills what still runs: without the agent nothing would drain it, and it would keep the
// ports of the agent's own proxy.
func (s *successor) killAll() {
	s.mu.Lock()
	var left []*process.Child
	for _, c := range s.running {
		left = append(left, c)
	}
	s.mu.Unlock()
	for _, c := range left {
		c.Kill()
	}
	for _, c := range left {
		select {
		case <-c.Ended:
		case <-time.After(time.Second):
		}
	}
}
