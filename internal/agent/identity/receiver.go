package identity

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// receiver takes the pod's identity from a volume in which the kubelet maintains it, and copies
// it to the identity files, which drivers know. It makes no keys and asks for no certificates.
type receiver struct {
	*holder
	dir string
	// credential and roots are the content of the files that was last looked at. The credential
	// includes the private key.
	credential keyPEM
	roots      []byte
}

// isIssuedByKubelet reports whether the injector has added the kubelet's volume to the pod.
func isIssuedByKubelet(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// run copies the identity until ctx ends.
func (r *receiver) run(ctx context.Context) {
	for {
		r.look()
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.timings.Poll):
		}
	}
}

// renewEarly does nothing: only the kubelet decides when it renews.
func (r *receiver) renewEarly() {}

// look copies the identity if the volume has changed. If the new one is invalid, the former
// stays.
func (r *receiver) look() {
	credential, roots, err := readVolume(r.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.current != nil:
		// The kubelet has just replaced the folder.
		return
	case err != nil:
		r.fail(noStore, fmt.Errorf("reading what the kubelet maintains: %w", err))
		return
	case bytes.Equal(credential, r.credential) && bytes.Equal(roots, r.roots):
		return
	}
	r.credential, r.roots = credential, roots
	if err := r.install(credential, roots); err != nil {
		r.fail(badAnswer, fmt.Errorf("what the kubelet maintains in %s: %w", r.dir, err))
	}
}

func (r *receiver) fail(reason string, err error) {
	r.metrics.Failed(reason)
	r.logFailure(reason, fmt.Errorf("no certificate: %w", err))
}

// install checks an identity and writes it to the files.
func (r *receiver) install(credential keyPEM, text []byte) error {
	roots, err := parseRoots(text)
	if err != nil {
		return fmt.Errorf("the trust bundle: %w", err)
	}
	key, chain := pem.Decode(credential)
	if key == nil {
		return errors.New("there is no private key")
	}
	m := material{key: pem.EncodeToMemory(key), chain: chain, bundle: roots.Encode()}
	certs, err := r.inspect(m, roots)
	if err != nil {
		return err
	}
	if r.current != nil && r.current.digest() == m.digest() {
		// The kubelet has written the same roots in another order or with other comments.
		return nil
	}
	if err := r.store.write(m); err != nil {
		// Try again.
		r.credential = nil
		return err
	}
	clear(r.logged)
	r.metrics.Renewals.Add(1)
	r.log.Info("received a certificate from the kubelet", "identity", r.subject.identity.String(), "until", pki.End(certs))
	r.setCurrent(m, certs)
	return nil
}

// readVolume reads both files of one state of the volume, whose link the kubelet swaps.
func readVolume(dir string) (credential keyPEM, roots []byte, err error) {
	state, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		return nil, nil, err
	}
	if credential, err = os.ReadFile(filepath.Join(dir, state, agentspec.CredentialFile)); err != nil {
		return nil, nil, err
	}
	roots, err = os.ReadFile(filepath.Join(dir, state, agentspec.RootsFile))
	return credential, roots, err
}
