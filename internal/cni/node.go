package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// node installs the plug-in on a node.
type node struct {
	// program is the file to install.
	program string
	// The folders of the node.
	binDir, confDir, resultsDir string
	// confName is the file of confDir to change; empty means the one that the runtime
	// uses.
	confName string
	repair   bool
	// daemonSet is NAMESPACE/NAME, or empty.
	daemonSet string
	// accountDir holds the pod's service account token and CA certificate.
	accountDir string
	// every is the interval between checks of the node, and leaveTime how long to retry
	// the API server on shutdown, less than the pod's grace period.
	every, leaveTime time.Duration
	log              *slog.Logger

	// written describes the program's file on the node.
	written fs.FileInfo
	// seen holds the modification times of the runtime's records that are done.
	seen map[string]time.Time
	// logged are the current problems, by subject.
	logged map[string]string
}

// savedSuffix is appended to the name of a file that a list replaces.
const savedSuffix = "." + Name + "-saved"

// run installs the plug-in, keeps it installed until the context ends, and then removes it
// if the DaemonSet is gone. It checks repeatedly, since other programs change the folder
// too.
func (n *node) run(ctx context.Context) error {
	n.log.Info("keeping the plug-in installed", "binDir", n.binDir, "confDir", n.confDir, "repair", n.repair)
	tick := time.NewTicker(n.every)
	defer tick.Stop()
	for {
		n.logChange("installing", n.install())
		if n.repair {
			n.repairAll()
		}
		select {
		case <-ctx.Done():
			return n.leave()
		case <-tick.C:
		}
	}
}

// logChange logs a problem once when it begins or changes, and once when it ends.
func (n *node) logChange(what string, err error) {
	if n.logged == nil {
		n.logged = make(map[string]string)
	}
	switch before, was := n.logged[what]; {
	case err != nil && before != err.Error():
		n.logged[what] = err.Error()
		n.log.Error(what, "error", err)
	case err == nil && was:
		delete(n.logged, what)
		n.log.Info(what + " works again")
	}
}

// install installs the program and the entry if they are missing. The program comes first:
// an entry without it would keep every pod from starting.
func (n *node) install() error {
	if err := n.installProgram(); err != nil {
		return err
	}
	name, text, err := n.active()
	if err != nil {
		return err
	}
	path := filepath.Join(n.confDir, name)
	if isList(name) {
		want, err := withEntry(text)
		if err != nil || bytes.Equal(want, text) {
			return err
		}
		if err := replaceFile(path, want, modeOf(path)); err != nil {
			return err
		}
		n.log.Info("added the plug-in", "file", name)
		return nil
	}
	list, err := listOf(text)
	if err != nil {
		return err
	}
	if list, err = withEntry(list); err != nil {
		return err
	}
	listName := strings.TrimSuffix(name, filepath.Ext(name)) + ".conflist"
	if err := replaceFile(filepath.Join(n.confDir, listName), list, modeOf(path)); err != nil {
		return err
	}
	// Otherwise the runtime would keep using it, since its name sorts first.
	if err := os.Rename(path, path+savedSuffix); err != nil {
		return err
	}
	n.log.Info("replaced a single plug-in by a list with the plug-in", "file", name, "list", listName)
	return nil
}

func (n *node) installProgram() error {
	path := filepath.Join(n.binDir, Name)
	if info, err := os.Stat(path); err == nil && n.written != nil && os.SameFile(info, n.written) &&
		info.Size() == n.written.Size() && info.ModTime().Equal(n.written.ModTime()) {
		return nil
	}
	program, err := os.ReadFile(n.program)
	if err != nil {
		return fmt.Errorf("reading the program: %w", err)
	}
	if there, err := os.ReadFile(path); err != nil || !bytes.Equal(there, program) {
		if err := replaceFile(path, program, 0o755); err != nil {
			return err
		}
		n.log.Info("wrote the program", "file", path)
	}
	n.written, err = os.Stat(path)
	return err
}

// active returns the file that the container runtime uses: the first valid one by name.
func (n *node) active() (name string, text []byte, err error) {
	files, err := n.confFiles()
	if err != nil {
		return "", nil, err
	}
	var problems []error
	for _, name := range files {
		if n.confName != "" && name != n.confName {
			continue
		}
		text, err := os.ReadFile(filepath.Join(n.confDir, name))
		if err == nil && isList(name) {
			_, err = elements(text)
		} else if err == nil {
			_, err = listOf(text)
		}
		if err == nil {
			return name, text, nil
		}
		problems = append(problems, fmt.Errorf("%s: %w", name, err))
	}
	if len(problems) > 0 {
		return "", nil, fmt.Errorf("no file of %s is a CNI configuration: %w", n.confDir, errors.Join(problems...))
	}
	wanted := "*.conflist"
	if n.confName != "" {
		wanted = n.confName
	}
	return "", nil, fmt.Errorf("there is no CNI configuration %s in %s yet to add the plug-in to; the cluster's network plug-in writes it", wanted, n.confDir)
}

// confFiles returns the names of the files that a container runtime reads, in its order.
func (n *node) confFiles() ([]string, error) {
	all, err := os.ReadDir(n.confDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range all {
		if ext := filepath.Ext(file.Name()); !file.IsDir() && slices.Contains([]string{".conflist", ".conf", ".json"}, ext) {
			names = append(names, file.Name())
		}
	}
	slices.Sort(names)
	// confName may be the old name of a single plug-in that a list replaced.
	if n.confName != "" && !isList(n.confName) && !slices.Contains(names, n.confName) {
		n.confName = strings.TrimSuffix(n.confName, filepath.Ext(n.confName)) + ".conflist"
	}
	return names, nil
}

func isList(name string) bool { return filepath.Ext(name) == ".conflist" }

// ready returns an error unless the plug-in is installed for the networks of new pods.
func (n *node) ready() error {
	if _, err := os.Stat(filepath.Join(n.binDir, Name)); err != nil {
		return err
	}
	name, text, err := n.active()
	if err != nil {
		return err
	}
	if !isList(name) {
		return fmt.Errorf("%s is a single plug-in", name)
	}
	want, err := withEntry(text)
	if err == nil && !bytes.Equal(want, text) {
		err = fmt.Errorf("%s does not contain the plug-in", name)
	}
	return err
}

// settle is how long a container runtime may take to reload its configuration.
const settle = time.Second

// remove reverts install.
func (n *node) remove() error {
	all, err := os.ReadDir(n.confDir)
	if err != nil {
		return err
	}
	var problems []error
	for _, file := range all {
		switch {
		case isList(file.Name()):
			err = n.removeEntry(file.Name())
		case strings.HasSuffix(file.Name(), savedSuffix):
			err = n.restore(file.Name())
		default:
			err = nil
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", file.Name(), err))
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	time.Sleep(min(settle, n.every))
	if err := os.Remove(filepath.Join(n.binDir, Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	n.log.Info("removed the plug-in from the node")
	return nil
}

func (n *node) removeEntry(name string) error {
	path := filepath.Join(n.confDir, name)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte(Name)) {
		return nil
	}
	without, err := withoutEntry(text)
	if err != nil || bytes.Equal(without, text) {
		return err
	}
	return replaceFile(path, without, modeOf(path))
}

// restore restores the configuration of a single plug-in.
func (n *node) restore(saved string) error {
	name := strings.TrimSuffix(saved, savedSuffix)
	path := filepath.Join(n.confDir, name)
	list := strings.TrimSuffix(path, filepath.Ext(path)) + ".conflist"
	if _, err := os.Stat(path); err == nil {
		// Another program has written it again.
		return os.Remove(path + savedSuffix)
	}
	if err := os.Rename(path+savedSuffix, path); err != nil {
		return err
	}
	if err := os.Remove(list); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func modeOf(path string) fs.FileMode {
	if info, err := os.Stat(path); err == nil {
		return info.Mode().Perm()
	}
	return 0o644
}

// replaceFile writes a file atomically.
func replaceFile(path string, content []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+Name+"-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
