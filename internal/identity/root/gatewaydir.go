package root

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ownMark is a file that marks folders filled by Put.
const ownMark = ".outrigger"

// dirGateway stores the gateway's certificate in a folder of the store. It ignores
// namespaces.
type dirGateway struct{ store *DirStore }

// Gateway returns the store of an ingress gateway's certificate in this folder.
func (s *DirStore) Gateway() GatewaySecrets { return dirGateway{s} }

// Get reads a folder.
func (g dirGateway) Get(ctx context.Context, _, name string) (Secret, bool, error) {
	secret, err := g.store.Get(ctx, name)
	if err != nil {
		return Secret{}, false, err
	}
	_, err = os.Lstat(filepath.Join(g.store.dir, name, ownMark))
	return secret, err == nil, nil
}

// Put writes a folder.
func (g dirGateway) Put(ctx context.Context, _, name string, old Secret, data map[string][]byte) error {
	if err := g.store.Update(ctx, name, old, data); err != nil {
		return err
	}
	return WriteFile(filepath.Join(g.store.dir, name, ownMark), nil, 0o600)
}

// Clear deletes a folder that has our mark.
func (g dirGateway) Clear(_ context.Context, _, name string) error {
	folder, err := g.store.folder(name)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(folder, ownMark)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("deleting %s: %w", folder, err)
	}
	return nil
}
