package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Names of the identity files.
const (
	keyFile    = "key.pem"
	chainFile  = "chain.pem"
	bundleFile = "bundle.pem"
	// identityFile holds key and chain, for proxies that read both from one file.
	identityFile = "identity.pem"

	// dataLink is the link that is swapped; generationPrefix begins the names of the folders
	// that it points to.
	dataLink         = "..data"
	generationPrefix = "..generation-"
)

// keyPEM is a private key as PEM. Printing it does not reveal the key.
type keyPEM []byte

func (keyPEM) Format(f fmt.State, _ rune)   { fmt.Fprint(f, hiddenKey) }
func (keyPEM) MarshalText() ([]byte, error) { return []byte(hiddenKey), nil }

const hiddenKey = "(private key)"

// material is the content of the identity files.
type material struct {
	key           keyPEM
	chain, bundle []byte
}

// Format prints the material without the key.
func (m material) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "%s%s%s", m.key, m.chain, m.bundle)
}

// identity returns key and chain as one PEM text, which contains the private key.
func (m material) identity() keyPEM { return slices.Concat(m.key, m.chain) }

// digest returns a digest of the chain and the bundle. It also changes with the key, since
// each key has its own certificate.
func (m material) digest() string {
	return mesh.JoinDigests(mesh.DigestBytes(m.chain), mesh.DigestBytes(m.bundle)).String()
}

// store is the identity folder. Its files are links through ..data, which is swapped
// atomically, so that a reader that resolves ..data once sees a matching key, chain and
// bundle. The previous generation stays until the next swap, for readers that still use it.
type store struct {
	dir string
	// shared makes the files readable to the group of this process.
	shared bool
	// written, if set, is called with the new content after each write.
	written func(material)
}

// openStore opens the folder and creates it if it is missing.
func openStore(dir string, shared bool, written func(material)) (*store, error) {
	s := &store{dir, shared, written}
	if err := os.MkdirAll(dir, s.mode(0o700)); err != nil {
		return nil, fmt.Errorf("creating the identity folder: %w", err)
	}
	// A volume's root folder belongs to the kubelet; the generations are protected anyway.
	if err := os.Chmod(dir, s.mode(0o700)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("protecting the identity folder: %w", err)
	}
	return s, nil
}

// mode returns the mode of a file or folder that would have the given one if only this
// user could read it.
func (s *store) mode(private fs.FileMode) fs.FileMode {
	if s.shared {
		return private | private&0o500>>3
	}
	return private
}

// read returns the content of the folder. The error wraps fs.ErrNotExist if the folder is
// empty.
func (s *store) read() (material, error) {
	generation, err := os.Readlink(filepath.Join(s.dir, dataLink))
	if err != nil {
		return material{}, err
	}
	var m material
	for name, into := range map[string]*[]byte{keyFile: (*[]byte)(&m.key), chainFile: &m.chain, bundleFile: &m.bundle} {
		if *into, err = os.ReadFile(filepath.Join(s.dir, generation, name)); err != nil {
			return material{}, err
		}
	}
	return m, nil
}

// write replaces all files at once. After an error the old ones remain.
func (s *store) write(m material) error {
	if err := s.replace(m); err != nil {
		return fmt.Errorf("writing the identity files: %w", err)
	}
	if s.written != nil {
		s.written(m)
	}
	return nil
}

func (s *store) replace(m material) error {
	before, err := os.Readlink(filepath.Join(s.dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kit.RemoveEntries(s.dir, func(name string) bool { return strings.HasPrefix(name, generationPrefix) && name != before })
	generation, err := os.MkdirTemp(s.dir, generationPrefix)
	if err != nil {
		return err
	}
	err = s.fill(generation, m)
	if err == nil {
		err = kit.ReplaceLink(filepath.Base(generation), filepath.Join(s.dir, dataLink))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(generation))
	}
	for _, name := range []string{keyFile, chainFile, bundleFile, identityFile} {
		target := filepath.Join(dataLink, name)
		if is, err := os.Readlink(filepath.Join(s.dir, name)); err == nil && is == target {
			continue
		}
		if err := kit.ReplaceLink(target, filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) fill(generation string, m material) error {
	for _, f := range []struct {
		name    string
		content []byte
		mode    fs.FileMode
	}{
		{keyFile, m.key, s.mode(0o600)}, {chainFile, m.chain, 0o644}, {bundleFile, m.bundle, 0o644},
		{identityFile, m.identity(), s.mode(0o600)},
	} {
		if err := os.WriteFile(filepath.Join(generation, f.name), f.content, f.mode); err != nil {
			return err
		}
	}
	// Last, since this would end the inheritance of a volume's group by new files.
	return os.Chmod(generation, s.mode(0o700))
}
