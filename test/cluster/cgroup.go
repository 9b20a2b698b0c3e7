package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// cgroup returns the name of the cgroup of all pods.
func (c *cluster) cgroup() string { return "/outrigger-cluster-" + c.name }

// cgroupRoots returns the cluster's cgroups: one per controller with cgroup v1, one in all
// with v2.
func (c *cluster) cgroupRoots() ([]string, error) {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root + c.cgroup()}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, filepath.Join(root, e.Name())+c.cgroup())
		}
	}
	return all, nil
}

func (c *cluster) makeCgroups() error {
	roots, err := c.cgroupRoots()
	if err != nil {
		return err
	}
	for _, dir := range roots {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// Nothing can run in a new cpuset before it has processors and memory.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), all, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroups removes the cluster's cgroups, the innermost first. It retries, since the
// kernel releases a cgroup some time after its last process.
func (c *cluster) removeCgroups() error {
	roots, err := c.cgroupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for deadline := time.Now().Add(10 * time.Second); ; {
			err := removeCgroup(root)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("removing the cgroup %s: %w", root, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

func removeCgroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
