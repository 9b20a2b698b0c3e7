package ondemand

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

// File is a Store for a mesh without an API server: one JSON file with what each service
// account of each namespace uses.
type File struct {
	path     string
	apply    func(...fact.Fact)
	snapshot func() *fact.Snapshot

	mu      sync.Mutex
	learned map[string]map[string]fact.Used
}

// NewFile returns a Store in a file and applies what is in it.
func NewFile(path string, apply func(...fact.Fact), snapshot func() *fact.Snapshot) (*File, error) {
	f := &File{path: path, apply: apply, snapshot: snapshot, learned: make(map[string]map[string]fact.Used)}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f.learned)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the learned services in %s: %w; delete the file to learn them again", path, err)
	}
	for namespace, accounts := range f.learned {
		apply(object(namespace, maps.Clone(accounts)))
	}
	return f, nil
}

// Add is for Store.
func (f *File) Add(_ context.Context, account fact.ServiceAccount, used fact.Used) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	accounts := f.learned[account.Namespace]
	if accounts == nil {
		accounts = make(map[string]fact.Used)
		f.learned[account.Namespace] = accounts
	}
	if accounts[account.Name].Has(used) {
		return nil
	}
	accounts[account.Name] = merge(accounts[account.Name], used, f.snapshot())
	text, err := json.Marshal(f.learned)
	if err == nil {
		err = store.WriteFile(f.path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the learned services: %w", err)
	}
	f.apply(object(account.Namespace, maps.Clone(accounts)))
	return nil
}
