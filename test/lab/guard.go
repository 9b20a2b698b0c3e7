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

// guardName, as the program's name, makes the program a guard.
const guardName = "outrigger-lab-guard"

// stopTimeout bounds the wait for killed processes.
const stopTimeout = 10 * time.Second

func init() {
	if len(os.Args) == 1 && os.Args[0] == guardName {
		// Skips the runtime's exit, which takes a second with the race detector.
		syscall.Exit(runGuard())
	}
}

// guard is a process that outlives the lab's program briefly and kills the processes that
// it left behind. Containers get a signal when their parent dies, but one that is being
// started when the program is killed may miss it, and grandchildren of the node's
// processes get none.
//
// The guard is this program, started again. It is in the lab's IPC namespace, and all
// other processes in that namespace belong to the lab.
type guard struct {
	process *exec.Cmd
	// life is open as long as the lab exists.
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
	// Ctrl-C in a terminal must not reach it.
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

// stop makes the guard kill remaining processes and waits for it.
func (g *guard) stop() error {
	_ = g.life.Close()
	late := time.AfterFunc(2*stopTimeout, func() { _ = g.process.Process.Kill() })
	defer late.Stop()
	if err := g.process.Wait(); err != nil {
		return fmt.Errorf("processes of the lab may still run: its guard: %w", err)
	}
	return nil
}

// runGuard is the guard's main function. It returns the exit code.
func runGuard() int {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	// Standard input ends with the lab.
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

// killAll kills all other processes in an IPC namespace and returns their number.
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
		// The process ID may have been reused since; the descriptor keeps referring to
		// one process.
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

// processesIn returns the IDs of the processes in a namespace.
func processesIn(kind string, id uint64) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// On an error the process has ended or belongs to another user.
		if is, err := namespaceID(entry.Name(), kind); err == nil && is == id {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// namespaceID returns the number of a process's namespace, which is unique while the
// namespace exists.
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
