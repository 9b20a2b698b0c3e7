package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// kill kills a program of a container, as the kernel does when memory runs out. No pod could
// do that to the first process of another container.
func (c *cluster) kill(container, program string) error {
	if len(container) < 12 {
		return fmt.Errorf("%q is not the complete id of a container", container)
	}
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), container) {
			continue // Processes come and go.
		}
		dir := filepath.Dir(file)
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || strings.TrimSpace(string(name)) != program {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		found++
	}
	if found == 0 {
		return fmt.Errorf("container %s runs no %s", container, program)
	}
	return nil
}
