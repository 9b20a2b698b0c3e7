package lab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs f in a goroutine with its own thread, whose namespaces f may change. f
// reports whether it has restored the thread; otherwise the thread ends with f. It is
// never the main thread, which represents the whole program in /proc and cannot end.
func onThread(f func() (asBefore bool)) {
	run := func() {
		if f() {
			runtime.UnlockOSThread()
		}
	}
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			run()
			return
		}
		// While this goroutine is locked to the main thread, a new one gets another.
		other := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(other)
			run()
		}()
		<-other
		runtime.UnlockOSThread()
	}()
}

// onNewThread runs f on a thread that ends with it, and returns f's error.
func onNewThread(f func() error) error {
	done := make(chan error, 1)
	onThread(func() bool {
		done <- f()
		return false
	})
	return <-done
}

// ownNamespace opens a namespace of the current thread.
func ownNamespace(kind string) (*os.File, error) {
	return os.Open("/proc/thread-self/ns/" + kind)
}

// join moves the current thread into a namespace.
func join(namespace *os.File, kind int) error {
	if err := unix.Setns(int(namespace.Fd()), kind); err != nil {
		return fmt.Errorf("joining a namespace (setns of kind %#x): %w", kind, err)
	}
	return nil
}

// leave moves the current thread into new namespaces.
func leave(kinds int) error {
	if err := unix.Unshare(kinds); err != nil {
		return fmt.Errorf("creating namespaces (unshare of kinds %#x): %w", kinds, err)
	}
	return nil
}

// newNamespace creates a namespace that lasts as long as the file and its processes.
func newNamespace(kind int, name string) (*os.File, error) {
	var namespace *os.File
	err := onNewThread(func() error {
		if err := leave(kind); err != nil {
			return err
		}
		var err error
		namespace, err = ownNamespace(name)
		return err
	})
	return namespace, err
}
