package lab

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// volume is a volume of a pod: a folder of the lab's file system.
type volume struct {
	pod  *Pod
	name string
	dir  string
	// sources are the content of a volume that the lab writes; nil for an emptyDir.
	sources []corev1.VolumeProjection
	mode    fs.FileMode
	// memory says that the volume is a tmpfs.
	memory bool

	mu sync.Mutex
	// files are the current files by path, and version is their number.
	files   map[string]file
	version int
	// tokens are the current tokens, by audience and lifetime.
	tokens map[tokenKey]token
}

type file struct {
	content []byte
	mode    fs.FileMode
}

type tokenKey struct {
	audience string
	expires  time.Duration
}

type token struct {
	value string
	// renew is when the token must be replaced.
	renew time.Time
}

// newVolume creates a volume and writes its content.
func (p *Pod) newVolume(of *corev1.Volume) (*volume, error) {
	v := &volume{pod: p, name: of.Name, dir: path.Join(p.dir, "volumes", of.Name), mode: 0o644, tokens: make(map[tokenKey]token)}
	mode := func(m *int32) {
		if m != nil {
			v.mode = fs.FileMode(*m)
		}
	}
	switch {
	case of.EmptyDir != nil:
		return v, v.makeEmptyDir(of.EmptyDir)
	case of.Projected != nil:
		v.sources = of.Projected.Sources
		mode(of.Projected.DefaultMode)
	case of.ConfigMap != nil:
		v.sources = []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: of.ConfigMap.LocalObjectReference, Items: of.ConfigMap.Items, Optional: of.ConfigMap.Optional,
		}}}
		mode(of.ConfigMap.DefaultMode)
	case of.Secret != nil:
		v.sources = []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: of.Secret.SecretName}, Items: of.Secret.Items, Optional: of.Secret.Optional,
		}}}
		mode(of.Secret.DefaultMode)
	case of.DownwardAPI != nil:
		v.sources = []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: of.DownwardAPI.Items}}}
		mode(of.DownwardAPI.DefaultMode)
	default:
		return nil, fmt.Errorf("its volume %s: the lab supports only emptyDir, configMap, secret, downwardAPI and projected volumes", of.Name)
	}
	if err := p.lab.machine.mkdir(v.dir, 0o755); err != nil {
		return nil, err
	}
	return v, v.refresh()
}

// makeEmptyDir creates an empty, world-writable folder. All files of a lab are in memory;
// a volume of medium Memory is a separate tmpfs, so that its size can be limited.
func (v *volume) makeEmptyDir(of *corev1.EmptyDirVolumeSource) error {
	machine := v.pod.lab.machine
	if err := machine.mkdir(v.dir, 0o777); err != nil {
		return err
	}
	if group := v.pod.fsGroup(); group >= 0 {
		if err := errors.Join(machine.files.Chown(v.dir, -1, group), machine.files.Chmod(v.dir, 0o777|fs.ModeSetgid)); err != nil {
			return err
		}
	}
	if of.Medium != corev1.StorageMediumMemory {
		return nil
	}
	options := "mode=1777"
	if of.SizeLimit != nil {
		options = "mode=0777,size=" + strconv.FormatInt(of.SizeLimit.Value(), 10)
	}
	err := machine.do(func() error {
		return unix.Mount("volume", "/"+v.dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, options)
	})
	if err != nil {
		return fmt.Errorf("its volume %s: mounting a tmpfs: %w", v.name, err)
	}
	v.memory = true
	return nil
}

// refresh writes the volume's files if they have changed.
func (v *volume) refresh() error {
	if v.sources == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	files := make(map[string]file)
	for i := range v.sources {
		if err := v.read(&v.sources[i], files); err != nil {
			return fmt.Errorf("its volume %s: %w", v.name, err)
		}
	}
	same := func(a, b file) bool { return a.mode == b.mode && bytes.Equal(a.content, b.content) }
	if v.version > 0 && maps.EqualFunc(v.files, files, same) {
		return nil
	}
	if err := v.write(files); err != nil {
		return fmt.Errorf("its volume %s: %w", v.name, err)
	}
	return nil
}

// read adds the files of a source.
func (v *volume) read(source *corev1.VolumeProjection, files map[string]file) error {
	switch {
	case source.ServiceAccountToken != nil:
		of := source.ServiceAccountToken
		value, err := v.token(of)
		if err != nil {
			return err
		}
		return v.put(files, of.Path, nil, []byte(value))
	case source.ConfigMap != nil:
		of := source.ConfigMap
		data, ok := v.pod.configMap(of.Name)
		return v.putAll(files, "ConfigMap "+of.Name, data, ok, of.Items, of.Optional != nil && *of.Optional)
	case source.Secret != nil:
		of := source.Secret
		data, ok := v.pod.secret(of.Name)
		return v.putAll(files, "Secret "+of.Name, data, ok, of.Items, of.Optional != nil && *of.Optional)
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			if item.FieldRef == nil {
				return fmt.Errorf("%s: the lab supports only fields", item.Path)
			}
			value, err := v.pod.field(item.FieldRef.FieldPath)
			if err != nil {
				return err
			}
			if err := v.put(files, item.Path, item.Mode, []byte(value)); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New("the lab supports only service account tokens, ConfigMaps, Secrets and the downward API")
}

// putAll adds the files of an object's data, which may not exist: those of the items, or all.
func (v *volume) putAll(files map[string]file, object string, data map[string]string, exists bool, items []corev1.KeyToPath, optional bool) error {
	if !exists && !optional {
		return fmt.Errorf("there is no %s", object)
	}
	if items == nil {
		for key, value := range data {
			if err := v.put(files, key, nil, []byte(value)); err != nil {
				return err
			}
		}
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok && !optional {
			return fmt.Errorf("the %s has no key %s", object, item.Key)
		}
		if !ok {
			continue
		}
		if err := v.put(files, item.Path, item.Mode, []byte(value)); err != nil {
			return err
		}
	}
	return nil
}

func (v *volume) put(files map[string]file, name string, mode *int32, content []byte) error {
	if !fs.ValidPath(name) || name == "." || strings.HasPrefix(name, "..") {
		return fmt.Errorf("the path %q is not a path within a volume", name)
	}
	f := file{content, v.mode}
	if mode != nil {
		f.mode = fs.FileMode(*mode)
	}
	files[name] = f
	return nil
}

// token returns the current token, or a new one after four fifths of its lifetime.
func (v *volume) token(of *corev1.ServiceAccountTokenProjection) (string, error) {
	if v.pod.lab.options.Token == nil {
		return "", errors.New("the lab has no Options.Token for service account tokens")
	}
	key := tokenKey{of.Audience, time.Hour}
	if of.ExpirationSeconds != nil {
		key.expires = time.Duration(*of.ExpirationSeconds) * time.Second
	}
	now := time.Now()
	if is, ok := v.tokens[key]; ok && now.Before(is.renew) {
		return is.value, nil
	}
	value, err := v.pod.lab.options.Token(v.pod.object.DeepCopy(), key.audience, key.expires)
	if err != nil {
		return "", fmt.Errorf("a token for %q: %w", key.audience, err)
	}
	v.tokens[key] = token{value, now.Add(key.expires * 4 / 5)}
	return value, nil
}

// renewal returns when the first of the volume's tokens must be replaced.
func (v *volume) renewal() (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var first time.Time
	for _, t := range v.tokens {
		if first.IsZero() || t.renew.Before(first) {
			first = t.renew
		}
	}
	return first, !first.IsZero()
}

// write replaces the files atomically, by swapping the link through which they are
// accessed.
func (v *volume) write(files map[string]file) error {
	machine := v.pod.lab.machine
	const data, fresh = "..data", "..data_tmp"
	version := fmt.Sprintf("..%d", v.version+1)
	before := fmt.Sprintf("..%d", v.version)
	at := func(name string) string { return path.Join(v.dir, name) }

	// Left over from a failed write.
	if err := errors.Join(machine.files.RemoveAll(at(version)), machine.files.RemoveAll(at(fresh))); err != nil {
		return err
	}
	if err := machine.mkdir(at(version), 0o755); err != nil {
		return err
	}
	for name, f := range files {
		if err := v.writeOne(path.Join(at(version), name), f); err != nil {
			return err
		}
	}
	if err := machine.files.Symlink(version, at(fresh)); err != nil {
		return err
	}
	if err := machine.files.Rename(at(fresh), at(data)); err != nil {
		return err
	}
	is, was := tops(files), tops(v.files)
	v.files, v.version = files, v.version+1
	for name := range is {
		if !was[name] {
			if err := machine.files.Symlink(path.Join(data, name), at(name)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	for name := range was {
		if !is[name] {
			if err := machine.files.Remove(at(name)); err != nil {
				return err
			}
		}
	}
	return machine.files.RemoveAll(at(before))
}

func (v *volume) writeOne(name string, f file) error {
	files := v.pod.lab.machine.files
	if err := files.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := files.WriteFile(name, f.content, 0o600); err != nil {
		return err
	}
	mode := f.mode
	if group := v.pod.fsGroup(); group >= 0 {
		if err := files.Chown(name, -1, group); err != nil {
			return err
		}
		mode |= 0o040
	}
	return files.Chmod(name, mode)
}

// tops returns the first elements of the paths.
func tops(files map[string]file) map[string]bool {
	names := make(map[string]bool)
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		names[top] = true
	}
	return names
}

// remove unmounts the volume; its folder is removed with the pod's.
func (v *volume) remove() error {
	if !v.memory {
		return nil
	}
	return v.pod.lab.machine.do(func() error { return unix.Unmount("/"+v.dir, unix.MNT_DETACH) })
}

// fsGroup returns the group of the pod's volumes, or -1.
func (p *Pod) fsGroup() int {
	if context := p.object.Spec.SecurityContext; context != nil && context.FSGroup != nil {
		return int(*context.FSGroup)
	}
	return -1
}

// mounts returns a container's mounts of the pod's volumes.
func (p *Pod) mounts(container *corev1.Container, env []string) ([]mount, error) {
	var mounts []mount
	for _, of := range container.VolumeMounts {
		v, ok := p.volumes[of.Name]
		if !ok {
			return nil, fmt.Errorf("it mounts the volume %s, which its pod does not have", of.Name)
		}
		if !path.IsAbs(of.MountPath) {
			return nil, fmt.Errorf("its mount of the volume %s: %q is not absolute", of.Name, of.MountPath)
		}
		sub := cmp.Or(of.SubPath, strings.Join(expandAll([]string{of.SubPathExpr}, env), ""))
		if sub != "" && !fs.ValidPath(sub) {
			return nil, fmt.Errorf("its mount of the volume %s: the path %q is not a path within a volume", of.Name, sub)
		}
		if sub != "" && v.sources == nil {
			if err := v.makeSub(sub); err != nil {
				return nil, err
			}
		}
		mounts = append(mounts, mount{
			from: path.Join("/", v.dir, sub), to: path.Clean(of.MountPath),
			// Containers must not write to volumes that the lab writes.
			readOnly: of.ReadOnly || v.sources != nil,
		})
	}
	slices.SortFunc(mounts, func(a, b mount) int { return cmp.Compare(a.to, b.to) })
	return mounts, nil
}

// makeSub creates a world-writable folder in an emptyDir.
func (v *volume) makeSub(sub string) error {
	machine, at := v.pod.lab.machine, v.dir
	for part := range strings.SplitSeq(sub, "/") {
		at = path.Join(at, part)
		if _, err := machine.files.Lstat(at); err == nil {
			continue
		}
		if err := machine.mkdir(at, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
