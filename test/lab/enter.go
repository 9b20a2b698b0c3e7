package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// enterVariable is set in the environment of a program that is being restarted in a user
// namespace.
const enterVariable = "OUTRIGGER_LAB_ENTER"

// wantedIDs is how many user IDs a lab needs.
const wantedIDs = 1 << 16

func init() {
	if os.Getenv(enterVariable) == "" || len(os.Args) == 0 {
		return
	}
	if err := enterAgain(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "entering a user namespace:", err)
		os.Exit(1)
	}
}

// Enter enables labs for a user other than root, if the machine allows user namespaces and
// /etc/subuid and /etc/subgid give the user a range of IDs: it restarts the program as
// root of a user namespace, waits for it and exits with its code. A program must call it
// first. It returns if the user is root already, or if it fails; then Available returns
// the reason.
func Enter() {
	if os.Geteuid() == 0 {
		return
	}
	code, err := enter()
	if err != nil {
		// Only programs that use a lab need the error; Available returns it.
		enterErr = err
		return
	}
	os.Exit(code)
}

// enterErr is the error of Enter.
var enterErr error

func enter() (int, error) {
	uids, err := subordinate("/etc/subuid")
	if err != nil {
		return 0, err
	}
	gids, err := subordinate("/etc/subgid")
	if err != nil {
		return 0, err
	}
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return 0, fmt.Errorf("%s is missing; it is in the package uidmap", program)
		}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	// Pdeathsig takes effect when this thread ends, so it must last as long as this
	// process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{read}
	cmd.Env = append(os.Environ(), enterVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = read.Close()
	if err != nil {
		return 0, errors.Join(fmt.Errorf("creating a user namespace: %w", err), write.Close())
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	err = errors.Join(
		mapIDs("newuidmap", pid, os.Getuid(), uids),
		mapIDs("newgidmap", pid, os.Getgid(), gids),
	)
	if err == nil {
		_, err = write.Write([]byte{1})
	}
	_ = write.Close()
	if err != nil {
		// It exits, since it gets no byte.
		_ = cmd.Wait()
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			// The terminal sends these to the whole process group itself.
			if s != syscall.SIGINT && s != syscall.SIGQUIT {
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// mapIDs maps the namespace's ID 0 to the user's own ID, and the IDs after it to the range.
func mapIDs(program, pid string, own int, first uint64) error {
	out, err := exec.Command(program, pid, "0", strconv.Itoa(own), "1",
		"1", strconv.FormatUint(first, 10), strconv.Itoa(wantedIDs-1)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}

// subordinate returns the first ID of the user's range in /etc/subuid or /etc/subgid.
func subordinate(file string) (uint64, error) {
	names := []string{strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("reading the user's range of IDs: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 || f[0] != names[0] && f[0] != names[len(names)-1] {
			continue
		}
		first, err := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err == nil && err2 == nil && count >= wantedIDs-1 {
			return first, nil
		}
	}
	return 0, fmt.Errorf("%s gives the user %s no range of %d IDs", file, names[len(names)-1], wantedIDs-1)
}

// enterAgain runs in the new process, which is in the user namespace but has no
// capabilities yet. It waits until its user is mapped to root and executes the program
// again to gain them.
func enterAgain() error {
	if err := os.Unsetenv(enterVariable); err != nil {
		return err
	}
	pipe := os.NewFile(3, "pipe")
	if n, err := pipe.Read(make([]byte, 1)); n == 0 {
		return fmt.Errorf("it was given no IDs: %w", err)
	}
	if err := pipe.Close(); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}
