package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
)

// order is a message from the agent to the process in a successor's container, one packet of
// JSON. A start comes with the files of the new process, from standard output on.
type order struct {
	// ID is the order's number, which is in the answer to it, if there is one.
	ID int `json:"id,omitempty"`
	// Start starts a process, which later orders refer to by the ID of this one.
	Start *startOrder `json:"start,omitempty"`
	// Of is the process that the following are about.
	Of int `json:"of,omitempty"`
	// Signal is sent to the process, or with Group to its process group.
	Signal int  `json:"signal,omitempty"`
	Group  bool `json:"group,omitempty"`
	// Below asks for the IDs of its child processes.
	Below bool `json:"below,omitempty"`
	// Sockets asks for the inodes of its sockets and of those of its child processes.
	Sockets bool `json:"sockets,omitempty"`
	// Only, with Sockets, limits the question to child processes with these IDs.
	Only []int `json:"only,omitempty"`
	// TakenOver says that the proxy in this container has taken over.
	TakenOver bool `json:"takenOver,omitempty"`
	// Refused is why the agent does not use this container. Nothing follows it. Without it the
	// end of the connection means that the container is not needed any longer.
	Refused string `json:"refused,omitempty"`
}

type startOrder struct {
	Argv []string `json:"argv"`
	// Env overrides the container's environment.
	Env []string `json:"env,omitempty"`
}

// notice is a message in the other direction: an answer, or that a process has ended.
type notice struct {
	// ID is that of the order that this answers. Without one, Of has ended.
	ID int `json:"id,omitempty"`
	// PID answers a start, Below and Sockets the questions of the same names.
	PID     int      `json:"pid,omitempty"`
	Below   []int    `json:"below,omitempty"`
	Sockets []uint64 `json:"sockets,omitempty"`
	Error   string   `json:"error,omitempty"`
	// Of is the process that has ended, with the Status.
	Of     int             `json:"of,omitempty"`
	Status unix.WaitStatus `json:"status,omitempty"`
}

// maxPacket is the size of the longest message, in bytes.
const maxPacket = 192 << 10

// maxFiles is how many files a start may have.
const maxFiles = 8

// sendTimeout is how long the other side may take to read a message, and answerTimeout to
// answer one.
const sendTimeout, answerTimeout = 10 * time.Second, 30 * time.Second

// errTooLong is returned for messages that do not fit into a packet.
var errTooLong = errors.New("a message is too long")

func sendPacket(conn *net.UnixConn, message any, files ...*os.File) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(text) > maxPacket {
		return fmt.Errorf("%w: it has %d bytes", errTooLong, len(text))
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(text, rights, nil)
	return err
}

// receivePacket reads a message into a value, and returns the files that came with it.
func receivePacket(conn *net.UnixConn, buffer []byte, into any) ([]*os.File, error) {
	rights := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, m, flags, _, err := conn.ReadMsgUnix(buffer, rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, err
	}
	var files []*os.File
	controls, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, err
	}
	for _, c := range controls {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errTooLong
	}
	return files, errors.Join(err, json.Unmarshal(buffer[:n], into))
}

// remote is a successor's container, as the agent sees it.
type remote struct {
	conn *net.UnixConn
	own  *process.Children

	mu       sync.Mutex
	last     int                     // the last ID
	running  map[int]*process.Child  // by ID
	ids      map[*process.Child]int  // the IDs of those
	early    map[int]unix.WaitStatus // of processes that ended before they were among those
	awaiting map[int]chan notice     // answers, by ID
	gone     chan struct{}           // closed when the container is
}

func newRemote(conn *net.UnixConn, own *process.Children) *remote {
	r := &remote{
		conn: conn, own: own, running: make(map[int]*process.Child), ids: make(map[*process.Child]int),
		early: make(map[int]unix.WaitStatus), awaiting: make(map[int]chan notice), gone: make(chan struct{}),
	}
	go r.read()
	return r
}

// read receives notices until the connection ends. The processes have ended with it.
func (r *remote) read() {
	buffer := make([]byte, maxPacket)
	for {
		var n notice
		if _, err := receivePacket(r.conn, buffer, &n); err != nil {
			break
		}
		r.mu.Lock()
		if n.ID != 0 {
			if answer := r.awaiting[n.ID]; answer != nil {
				delete(r.awaiting, n.ID)
				answer <- n
			}
		} else {
			r.ended(n.Of, n.Status)
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.gone)
	for id := range r.running {
		r.ended(id, unix.WaitStatus(unix.SIGKILL))
	}
	_ = r.conn.Close()
}

// ended notes the end of a process. The caller holds mu.
func (r *remote) ended(id int, status unix.WaitStatus) {
	c := r.running[id]
	if c == nil {
		r.early[id] = status
		return
	}
	c.End(status)
	delete(r.running, id)
	delete(r.ids, c)
	delete(r.early, id)
}

var errContainerGone = errors.New("the container with the new proxy has ended")

// ask sends an order with the next ID, and waits for the answer.
func (r *remote) ask(o order, files []*os.File) (notice, error) {
	answer := make(chan notice, 1)
	r.mu.Lock()
	r.last++
	o.ID = r.last
	r.awaiting[o.ID] = answer
	err := sendPacket(r.conn, o, files...)
	r.mu.Unlock()
	if err != nil {
		return notice{}, err
	}
	select {
	case n := <-answer:
		if n.Error != "" {
			return n, errors.New(n.Error)
		}
		return n, nil
	case <-r.gone:
		return notice{}, errContainerGone
	case <-time.After(answerTimeout):
		// Nothing is known of its processes any more; they end with the connection.
		_ = r.conn.Close()
		return notice{}, fmt.Errorf("the container with the new proxy has not answered within %v", answerTimeout)
	}
}

// Start is for host. The program is the one of the container's image.
func (r *remote) Start(argv []string, quiet bool) (*process.Child, error) {
	return r.own.WithOutput(quiet, func(files []*os.File) (*process.Child, error) {
		n, err := r.ask(order{Start: &startOrder{Argv: argv, Env: r.own.Env()}}, files)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		started := process.NewChild(n.PID, r)
		r.running[n.ID], r.ids[started] = started, n.ID
		if status, ok := r.early[n.ID]; ok {
			r.ended(n.ID, status)
		} else if kit.IsClosed(r.gone) {
			r.ended(n.ID, unix.WaitStatus(unix.SIGKILL))
		}
		return started, nil
	})
}

// Signal is for host.
func (r *remote) Signal(child *process.Child, s unix.Signal, group bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, runs := r.ids[child]
	if !runs {
		return nil
	}
	return sendPacket(r.conn, order{Of: id, Signal: int(s), Group: group})
}

// Below is for host.
func (r *remote) Below(child *process.Child) []int {
	// Without an answer the container has ended, and the process with it.
	n, _ := r.askOf(child, order{Below: true})
	return n.Below
}

// Sockets is for host.
func (r *remote) Sockets(child *process.Child, only ...int) ([]uint64, error) {
	n, err := r.askOf(child, order{Sockets: true, Only: only})
	return n.Sockets, err
}

// askOf asks a question about a process. The answer is empty if it has ended.
func (r *remote) askOf(child *process.Child, o order) (notice, error) {
	r.mu.Lock()
	id, runs := r.ids[child]
	r.mu.Unlock()
	if !runs {
		return notice{}, nil
	}
	o.Of = id
	return r.ask(o, nil)
}

// Dismiss is for host. It ends the container.
func (r *remote) Dismiss(reason string) {
	if reason != "" {
		_ = sendPacket(r.conn, order{Refused: reason})
	}
	_ = r.conn.Close()
}
