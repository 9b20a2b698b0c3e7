package lab

import (
	"bufio"
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

// enterVariable is set in the environment of a program that is being started again
// in a user namespace.
const enterVariable = "OUTRIGGER_LAB_ENTER"

// wantedIDs is how many user ids a lab needs.
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

// Enter lets a user who is not root have labs, if the machine lets users have user
// namespaces and /etc/subuid and /etc/subgid give this one a range of ids: it starts
// the program again as the root of such a namespace, waits for it and exits with its
// code. A program calls it first of all. Where there is nothing to do, or nothing
// that can be done, it returns, and Available tells.
func Enter() {
	if os.Geteuid() == 0 {
		return
	}
	code, err := enter()
	if err != nil {
		// What is missing is for those to know who want a lab.
		whyNotEntered = err
		return
	}
	os.Exit(code)
}

// whyNotEntered is what Enter found missing.
var whyNotEntered error

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
	// The new process is to end with this one, which means with this thread.
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
		return 0, errors.Join(fmt.Errorf("making a user namespace: %w", err), write.Close())
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
		// Without the byte it ends.
		_ = cmd.Wait()
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			// The terminal tells the whole group of these itself.
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

// mapIDs makes the user's id 0 of the namespace and the range all ids after it.
func mapIDs(program, pid string, own int, first uint64) error {
	out, err := exec.Command(program, pid, "0", strconv.Itoa(own), "1",
		"1", strconv.FormatUint(first, 10), strconv.Itoa(wantedIDs-1)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}

// subordinate returns the first id of the user's range in /etc/subuid or its like.
func subordinate(file string) (uint64, error) {
	names := []string{strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		names = append(names, u.Username)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("the user's range of ids: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.Split(lines.Text(), ":")
		if len(f) != 3 || f[0] != names[0] && f[0] != names[len(names)-1] {
			continue
		}
		first, err := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err == nil && err2 == nil && count >= wantedIDs-1 {
			return first, nil
		}
	}
	return 0, fmt.Errorf("%s gives the user %s no range of %d ids", file, names[len(names)-1], wantedIDs-1)
}

// enterAgain is the new process, in the user namespace but without rights in it. It
// waits until its user is root and starts the program again, which gives it them.
func enterAgain() error {
	if err := os.Unsetenv(enterVariable); err != nil {
		return err
	}
	pipe := os.NewFile(3, "pipe")
	if n, err := pipe.Read(make([]byte, 1)); n == 0 {
		return fmt.Errorf("nobody gave it ids: %w", err)
	}
	if err := pipe.Close(); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}
