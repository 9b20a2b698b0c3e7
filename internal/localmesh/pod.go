package localmesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/lab"
)

// runningPod is a pod of the lab.
type runningPod struct {
	*lab.Pod
	// made is the pod as the manifests had it when it was started, as JSON.
	made []byte
}

// atOnce is how many pods are started at a time.
const atOnce = 4

// Apply writes a file of manifests and brings the pods in line: new ones start, those
// that are gone end in their own time, and those that have changed are replaced, unless
// it is only their status, for example that they are not ready. It returns when that is
// done. The sidecars of pods that are there already stay as they were injected; the
// proxies get their new configuration in the meantime or shortly after.
func (m *Mesh) Apply(ctx context.Context, file, manifest string) error {
	m.change.Lock()
	defer m.change.Unlock()
	if err := m.write(file, manifest); err != nil {
		return err
	}
	return m.again(ctx)
}

// Delete removes a file of manifests and brings the pods in line, as Apply does. A
// file that is not there is an error that wraps fs.ErrNotExist.
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
	return m.again(ctx)
}

// Restart ends a pod and starts it again, injected anew.
func (m *Mesh) Restart(ctx context.Context, name string) error {
	m.change.Lock()
	defer m.change.Unlock()
	m.mu.Lock()
	p := m.pods[name]
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("there is no pod %s to restart; there are %s", name, strings.Join(m.Pods(), ", "))
	}
	if err := m.stop(ctx, name); err != nil {
		return err
	}
	return m.again(ctx)
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
func (m *Mesh) file(name string) (string, error) {
	if !filepath.IsLocal(name) || filepath.Ext(name) != ".yaml" || strings.HasPrefix(filepath.Base(name), ".") {
		return "", fmt.Errorf("%q: the name of a manifest must end in .yaml and stay in its folder", name)
	}
	return filepath.Join(m.ManifestDir(), name), nil
}

// write replaces a manifest as a whole, since the controller reads it at any time.
func (m *Mesh) write(file, manifest string) error {
	name, err := m.file(file)
	if err != nil {
		return err
	}
	// Beside the manifests, where it is not read.
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

// again reads the manifests and brings the pods in line.
func (m *Mesh) again(ctx context.Context) error {
	wanted, err := m.read()
	if err != nil {
		return err
	}
	return m.reconcile(ctx, wanted)
}

// reconcile brings hosts and pods in line with what is wanted. Change is held.
func (m *Mesh) reconcile(ctx context.Context, wanted *wanted) error {
	m.mu.Lock()
	m.hosts = wanted.hosts
	var names []string
	for name, p := range m.pods {
		if w := wanted.pods[name]; w == nil || !bytes.Equal(w.made, p.made) {
			names = append(names, name)
		}
	}
	for name := range wanted.pods {
		if m.pods[name] == nil {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	slices.Sort(names)

	refreshed := m.lab.Refresh()
	errs := make([]error, len(names))
	starting := make(chan struct{}, atOnce)
	var tasks sync.WaitGroup
	for i, name := range names {
		tasks.Go(func() {
			if errs[i] = m.stop(ctx, name); errs[i] != nil || wanted.pods[name] == nil {
				return
			}
			starting <- struct{}{}
			defer func() { <-starting }()
			errs[i] = m.startPod(ctx, wanted, wanted.pods[name])
		})
	}
	tasks.Wait()
	return errors.Join(append(errs, refreshed)...)
}

func (m *Mesh) startPod(ctx context.Context, of *wanted, w *wantedPod) error {
	pod, err := of.inject(ctx, w)
	if err == nil {
		err = m.useImages(pod)
	}
	if err != nil {
		return err
	}
	name := pod.Namespace + "/" + pod.Name
	limited, cancel := context.WithTimeout(ctx, shortly)
	defer cancel()
	began := time.Now()
	started, err := m.lab.StartPod(limited, pod)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.pods[name] = &runningPod{started, w.made}
	m.mu.Unlock()
	m.progress("pod %s has started in %s", name, time.Since(began).Round(10*time.Millisecond))
	return nil
}

// stop ends a pod in its own time, if it is there. It is forgotten at once.
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

// WaitReady returns when the controller and all containers of all pods are ready.
func (m *Mesh) WaitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, shortly)
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
