package localmesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// runningPod is a pod of the lab.
type runningPod struct {
	*lab.Pod
	// made is the JSON of the pod in the manifests from which it was started.
	made []byte
}

// ErrPods means that the manifests are used, but that some of their pods could not be started or
// stopped.
var ErrPods = errors.New("not all pods could be started and stopped")

// podsError is an error of ErrPods, whose text is that of the pods.
type podsError struct{ error }

func (e podsError) Is(target error) bool { return target == ErrPods }
func (e podsError) Unwrap() error        { return e.error }

// maxStarting is how many pods are started at a time.
const maxStarting = 4

// Apply writes a file of manifests and reconciles the pods: it starts new ones, stops
// deleted ones gracefully, and replaces changed ones, unless only their status changed. It
// returns when that is done. Unchanged pods keep the sidecars that were injected earlier;
// the proxies get their new configuration meanwhile or shortly after.
func (m *Mesh) Apply(ctx context.Context, file, manifest string) error {
	m.change.Lock()
	defer m.change.Unlock()
	if err := m.write(file, manifest); err != nil {
		return err
	}
	return m.sync(ctx)
}

// Delete removes a file of manifests and reconciles the pods, as Apply does. If the file
// does not exist, the error wraps fs.ErrNotExist.
func (m *Mesh) Delete(ctx context.Context, file string) error {
	m.change.Lock()
	defer m.change.Unlock()
	name, err := m.file(file)
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		return fmt.Errorf("deleting the manifest: %w", err)
	}
	return m.sync(ctx)
}

// Replace replaces all manifests by others and reconciles the pods, as Apply does. If the
// others cannot be read, it changes nothing.
func (m *Mesh) Replace(ctx context.Context, manifests map[string]string) error {
	m.change.Lock()
	defer m.change.Unlock()
	next := filepath.Join(m.options.Dir, "next")
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := os.MkdirAll(next, 0o700); err != nil {
		return err
	}
	for name, text := range manifests {
		if err := m.writeTo(next, name, text); err != nil {
			return err
		}
	}
	desired, err := m.read(next)
	if err != nil {
		return err
	}
	for name, text := range manifests {
		if err := m.write(name, text); err != nil {
			return err
		}
	}
	err = filepath.WalkDir(m.ManifestDir(), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		below, err := filepath.Rel(m.ManifestDir(), name)
		if _, ok := manifests[below]; ok || err != nil {
			return err
		}
		return os.Remove(name)
	})
	if err != nil {
		return fmt.Errorf("deleting manifests: %w", err)
	}
	return m.reconcile(ctx, desired)
}

// Pod returns the pod with that name, "namespace/name", or nil.
func (m *Mesh) Pod(name string) *lab.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[name]; p != nil {
		return p.Pod
	}
	return nil
}

// Pods returns the names of all pods, sorted.
func (m *Mesh) Pods() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.pods))
}

// file returns the path of a manifest.
func (m *Mesh) file(name string) (string, error) { return fileIn(m.ManifestDir(), name) }

func fileIn(folder, name string) (string, error) {
	if !filepath.IsLocal(name) || !manifest.IsFile(name) || strings.HasPrefix(filepath.Base(name), ".") {
		return "", fmt.Errorf("%q: the name of a manifest must end in .yaml, .yml or .json and stay in its folder", name)
	}
	return filepath.Join(folder, name), nil
}

// write replaces a manifest atomically, since the controller may read it at any time.
func (m *Mesh) write(file, manifest string) error { return m.writeTo(m.ManifestDir(), file, manifest) }

func (m *Mesh) writeTo(folder, file, manifest string) error {
	name, err := fileIn(folder, file)
	if err != nil {
		return err
	}
	if text, err := os.ReadFile(name); err == nil && string(text) == manifest {
		return nil
	}
	// Outside the manifests' folder, so that the controller does not read it.
	temporary := filepath.Join(m.options.Dir, ".manifest")
	err = os.WriteFile(temporary, []byte(manifest), 0o600)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(name), 0o700)
	}
	if err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return fmt.Errorf("writing the manifest %s: %w", file, err)
	}
	return nil
}

// sync reads the manifests and reconciles the pods.
func (m *Mesh) sync(ctx context.Context) error {
	desired, err := m.read(m.ManifestDir())
	if err != nil {
		return err
	}
	return m.reconcile(ctx, desired)
}

// reconcile applies the desired hosts and pods. The caller holds change.
func (m *Mesh) reconcile(ctx context.Context, desired *desired) error {
	m.mu.Lock()
	m.hosts, m.data = desired.hosts, desired.data
	var names []string
	for name, p := range m.pods {
		if d := desired.pods[name]; d == nil || !bytes.Equal(d.made, p.made) {
			names = append(names, name)
		}
	}
	for name := range desired.pods {
		if m.pods[name] == nil {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	slices.Sort(names)

	refreshed := m.lab.Refresh()
	errs := make([]error, len(names))
	starting := make(chan struct{}, maxStarting)
	var tasks sync.WaitGroup
	for i, name := range names {
		tasks.Go(func() {
			if errs[i] = m.stop(ctx, name); errs[i] != nil || desired.pods[name] == nil {
				return
			}
			starting <- struct{}{}
			defer func() { <-starting }()
			errs[i] = m.startPod(ctx, desired, desired.pods[name])
		})
	}
	tasks.Wait()
	if err := errors.Join(append(errs, refreshed)...); err != nil {
		return podsError{err}
	}
	return nil
}

func (m *Mesh) startPod(ctx context.Context, of *desired, d *desiredPod) error {
	pod, err := of.inject(ctx, d)
	if err == nil {
		err = m.useImages(pod)
	}
	if err == nil && m.options.Change != nil {
		err = m.options.Change(pod)
	}
	if err != nil {
		return err
	}
	name := pod.Namespace + "/" + pod.Name
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	began := time.Now()
	started, err := m.lab.StartPod(limited, pod)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.pods[name] = &runningPod{started, d.made}
	m.mu.Unlock()
	m.progress("pod %s has started in %s", name, time.Since(began).Round(10*time.Millisecond))
	return nil
}

// stop removes a pod from the mesh and stops it gracefully, if it exists.
func (m *Mesh) stop(ctx context.Context, name string) error {
	m.mu.Lock()
	p := m.pods[name]
	delete(m.pods, name)
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.Stop(ctx)
}

// WaitReady waits until the controller and all containers of all pods are ready.
func (m *Mesh) WaitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := m.awaitController(limited, m.Controller()); err != nil {
		return err
	}
	m.mu.Lock()
	pods := maps.Clone(m.pods)
	m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if err := pods[name].Ready(limited); err != nil {
			return err
		}
	}
	return nil
}
