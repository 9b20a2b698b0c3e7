package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardName is the first argument by which the program knows that it is a guard.
const guardName = "outrigger-lab-guard"

// stopTimeout is how long killed processes may take to be gone.
const stopTimeout = 10 * time.Second

func init() {
	if len(os.Args) == 1 && os.Args[0] == guardName {
		// Without what the runtime does at exit, which takes a second with the race
		// detector.
		syscall.Exit(keepGuard())
	}
}

// guard is a process that outlives the lab's program for a moment and kills what
// that has left behind. Every container is told to die with its parent, but one
// that is being started when the program is killed may be too late to hear of it,
// and grandchildren of the node's processes are told nothing.
//
// It is this same program, started again. It shares the lab's IPC namespace, and
// whoever else is in that one belongs to the lab.
type guard struct {
	process *exec.Cmd
	// life is open as long as the lab.
	life *os.File
}

func startGuard(m *machine) (*guard, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{guardName}
	cmd.Stdin = read
	cmd.Dir = "/"
	// Ctrl-C in a terminal is not for it.
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	err = onNewThread(func() error {
		if err := join(m.ipc, unix.CLONE_NEWIPC); err != nil {
			return err
		}
		return cmd.Start()
	})
	_ = read.Close()
	if err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	return &guard{cmd, write}, nil
}

// stop lets the guard look for processes that are left and waits for it.
func (g *guard) stop() error {
	_ = g.life.Close()
	late := time.AfterFunc(2*stopTimeout, func() { _ = g.process.Process.Kill() })
	defer late.Stop()
	if err := g.process.Wait(); err != nil {
		return fmt.Errorf("processes of the lab may be left: its guard: %w", err)
	}
	return nil
}

// keepGuard is the guard's program. It returns its exit code.
func keepGuard() int {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	// The end of its standard input is the end of the lab.
	_, _ = io.Copy(io.Discard, os.Stdin)
	own, err := namespaceID("self", "ipc")
	if err != nil {
		return 1
	}
	for end := time.Now().Add(stopTimeout); ; time.Sleep(2 * time.Millisecond) {
		left, err := killAll(own)
		if err == nil && left == 0 {
			return 0
		}
		if time.Now().After(end) {
			return 2
		}
	}
}

// killAll kills all processes of an IPC namespace but this one and returns how many
// there were.
func killAll(ipc uint64) (int, error) {
	pids, err := processesIn("ipc", ipc)
	if err != nil {
		return 0, err
	}
	left := 0
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		left++
		// The process may have gone and its number be another's by now; what the
		// descriptor stands for stays the same.
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if id, err := namespaceID(strconv.Itoa(pid), "ipc"); err == nil && id == ipc {
			_ = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0)
		}
		_ = unix.Close(process)
	}
	return left, nil
}

// processesIn returns the processes that are in a namespace.
func processesIn(kind string, id uint64) ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = proc.Close() }()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// A process that has gone, or that is another user's, is none of ours.
		if is, err := namespaceID(name, kind); err == nil && is == id {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// namespaceID returns the number of a process's namespace, which no other has as
// long as it exists.
func namespaceID(pid, kind string) (uint64, error) {
	var stat unix.Stat_t
	file := path.Join("/proc", pid, "ns", kind)
	if err := unix.Stat(file, &stat); err != nil {
		return 0, &os.PathError{Op: "stat", Path: file, Err: err}
	}
	return stat.Ino, nil
}

// errGone is the error of a signal to a process that has ended.
var errGone = errors.New("it is not running")
