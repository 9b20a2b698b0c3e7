// Package store keeps the Secrets of the mesh's CAs, in an API server or in a folder. It
// gives their content no meaning.
package store

import (
	"context"
	"errors"
)

var (
	// ErrNotFound means that a Secret does not exist and that the store may not create it.
	ErrNotFound = errors.New("there is no such Secret")
	// ErrConflict means that a Secret has changed since it was read.
	ErrConflict = errors.New("the Secret was changed by another process")
)

// Secrets is a store of the control plane's Secrets. It is safe for use by many goroutines and
// processes. Errors name the Secret and never contain its content.
type Secrets interface {
	// Get returns a Secret. If the store creates Secrets, a missing one is empty. Otherwise
	// the error wraps ErrNotFound and says how to create it.
	Get(ctx context.Context, name string) (Secret, error)
	// Update replaces the data of a Secret atomically. If the Secret has changed since Get
	// returned old, the error wraps ErrConflict.
	Update(ctx context.Context, name string, old Secret, data map[string][]byte) error
	// Watch calls changed after each change of a Secret, including creation and deletion,
	// until ctx ends. It may call it too often.
	Watch(ctx context.Context, name string, changed func())
	// Describe returns a description of a Secret for messages.
	Describe(name string) string
}

// Secret is the content of a Secret. It must not be changed.
type Secret struct {
	Data map[string][]byte
	// Empty is set if the Secret may be filled.
	Empty bool
	// Version identifies the content, in a format of the store.
	Version string
}
