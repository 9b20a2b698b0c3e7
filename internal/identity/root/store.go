package root

import (
	"context"
	"errors"
)

var (
	// ErrNotFound says that there is no such Secret, and that it is not for us to make it.
	ErrNotFound = errors.New("there is no such Secret")
	// ErrConflict says that somebody else has changed a Secret in the meantime.
	ErrConflict = errors.New("somebody else has changed the Secret")
)

// SecretStore keeps Secrets that belong to the control plane, all in one place. It is
// safe for use by many goroutines and many processes. Errors name the Secret and never
// show what is in it.
type SecretStore interface {
	// Get returns a Secret as it is now. Where the store makes Secrets itself, one that is
	// missing is empty. Elsewhere that is an error, which wraps ErrNotFound and says how
	// to make it.
	Get(ctx context.Context, name string) (Secret, error)
	// Update fills a Secret, or changes its data, whole or not at all, if it still is as old
	// was when it was got; else the error wraps ErrConflict.
	Update(ctx context.Context, name string, old Secret, data map[string][]byte) error
	// Watch calls changed after each change of a Secret until ctx ends, when it is made
	// or deleted too. It may call it too often.
	Watch(ctx context.Context, name string, changed func())
	// Describe names a Secret for people.
	Describe(name string) string
}

// Secret is what is in one. Nobody may change it.
type Secret struct {
	Data map[string][]byte
	// empty says that the Secret waits for us to fill it.
	empty bool
	// version is the store's own word for the state of the Secret.
	version string
}

// The keys of Secrets.
const (
	keyCert = "ca.crt"
	keyKey  = "ca.key"
	// keyLegacyKey is what Open Service Mesh called it.
	keyLegacyKey = "private.key"
	keyState     = "state.json"
)
