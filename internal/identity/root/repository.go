package root

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// DefaultRepository is the Secret of the root of the repository of configuration files.
const DefaultRepository = "outrigger-repository-ca"

const (
	// repositoryOverlap is how long before the end of the last root the next one is made,
	// and repositoryPropagation how long a root is told of before it signs. Agents hear of
	// it when they renew their certificates.
	repositoryOverlap     = 2 * 365 * 24 * time.Hour
	repositoryPropagation = 365 * 24 * time.Hour
	// repositoryRest bounds how long nobody looks. Timers stand still while a machine is
	// suspended.
	repositoryRest = 24 * time.Hour
)

// RepositoryManager is told what signs for the repository, and the PEM of the roots that
// verify it, the one that signs first.
type RepositoryManager interface {
	UseRepository(signing issuer.Issuer, roots []byte)
}

// Repository keeps the root of the repository of configuration files: a CA that nothing
// else is signed by, because there are proxies that verify no name. It is in a Secret
// that all replicas share, which the first of them fills: in ca.crt a certificate, in
// ca.key its key. A root is valid for ten years. In its last two there is a second one
// beside it, which takes over after a year; so the root changes without anybody's doing
// as long as each agent renews its certificate once in that year.
//
// A Secret that is emptied is put back as it was by the replicas that run. One that is
// broken or missing leaves in use what is, and is a Problem. Its methods are safe for use by many
// goroutines.
type Repository struct {
	opts    RepositoryOptions
	changed chan struct{}

	// These two belong to the goroutine of Run. Told is how used was told.
	used repositoryState
	told string

	mu       sync.Mutex
	problems []mesh.Problem
	watchers []func()
}

// RepositoryOptions say where a Repository keeps its root. All but Secret are required.
type RepositoryOptions struct {
	Manager RepositoryManager
	Secrets SecretStore
	// Namespace is the control plane's.
	Namespace string
	// Secret is the name of the Secret; "" means DefaultRepository.
	Secret string
	Log    *slog.Logger
}

// NewRepository returns a Repository that does nothing before Run.
func NewRepository(opts RepositoryOptions) *Repository {
	opts.Secret = cmp.Or(opts.Secret, DefaultRepository)
	return &Repository{opts: opts, changed: make(chan struct{}, 1)}
}

// Problems returns what is wrong with the Secret now; none if all is well.
func (r *Repository) Problems() []mesh.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.problems)
}

// OnProblems has f called after each change of Problems. It must not block.
func (r *Repository) OnProblems(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, f)
}

// tell notes what is wrong, and says so when that changes.
func (r *Repository) tell(err error) {
	var now []mesh.Problem
	if err != nil {
		reason := ReasonUnavailable
		if errors.Is(err, errUnusable) {
			reason = ReasonUnusable
		}
		object := mesh.ObjectRef{APIVersion: "v1", Kind: "Secret", Namespace: r.opts.Namespace, Name: r.opts.Secret}
		now = []mesh.Problem{{Object: object, Reason: reason, Message: err.Error()}}
	}
	r.mu.Lock()
	same := slices.Equal(r.problems, now)
	r.problems = now
	watchers := slices.Clone(r.watchers)
	r.mu.Unlock()
	if same {
		return
	}
	if err != nil {
		r.opts.Log.Error("the root of the repository of configuration files stays as it is", "error", err)
	}
	for _, f := range watchers {
		f()
	}
}

var errUnusable = errors.New("the root of the repository of configuration files cannot be used")

// Run tells the manager what signs, and again when that changes, until ctx ends. It is
// called once.
func (r *Repository) Run(ctx context.Context) {
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.opts.Secrets.Watch(watching, r.opts.Secret, func() {
			select {
			case r.changed <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { stop(); <-watched }()
	for {
		rest, err := r.look(ctx)
		if ctx.Err() != nil {
			return
		}
		r.tell(err)
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// look does all that is due and returns how long nothing else will be.
func (r *Repository) look(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret, err := r.opts.Secrets.Get(ctx, r.opts.Secret)
	if err != nil {
		return soon, err
	}
	// What was in use goes on if somebody has emptied the Secret.
	found := r.used
	if !secret.empty {
		if found, err = parseRepository(secret.Data); err != nil {
			return soon, fmt.Errorf("%s: %w: %w; empty it to have it made again", r.opts.Secrets.Describe(r.opts.Secret), errUnusable, err)
		}
	}
	now := time.Now()
	next, err := found.advance(now)
	if err != nil {
		return soon, err
	}
	if secret.empty || !bytes.Equal(found.certificates(), next.certificates()) {
		err = r.opts.Secrets.Update(ctx, r.opts.Secret, secret, next.encode())
	}
	if errors.Is(err, ErrConflict) {
		return lost, nil // Another replica was quicker. Its roots count.
	}
	if err != nil {
		return soon, err
	}
	r.use(next, now)
	return min(max(time.Until(next.wake(now)), time.Second), repositoryRest), nil
}

// use tells the manager, if there is something new.
func (r *Repository) use(next repositoryState, now time.Time) {
	signing := next.signing(now)
	text := []byte(encodeRoots(signing.certificate))
	for _, root := range next {
		if root != signing {
			text = append(text, encodeRoots(root.certificate)...)
		}
	}
	if r.told == string(text) {
		return
	}
	r.used, r.told = next, string(text)
	r.opts.Manager.UseRepository(signing.ca, text)
	r.opts.Log.Info("the root of the repository of configuration files", "in", r.opts.Secrets.Describe(r.opts.Secret),
		"signing", signing.certificate.Subject.String(), "until", signing.certificate.NotAfter.UTC().Format(time.RFC3339), "trusted", len(next))
}

// repositoryState is the roots of a Secret, the oldest first.
type repositoryState []*repositoryCA

type repositoryCA struct {
	certificate *x509.Certificate
	key         []byte
	ca          *issuer.CA
}

// newRepositoryCA reads a root. It fails for one that is expired.
func newRepositoryCA(cert, key []byte) (*repositoryCA, error) {
	ca, err := issuer.FromPEM(cert, key)
	if err != nil {
		return nil, err
	}
	roots, err := parseRoots(cert)
	if err != nil {
		return nil, err
	}
	return &repositoryCA{roots[0], key, ca}, nil
}

// parseRepository reads what encode has written. Roots that are expired are left out.
func parseRepository(data map[string][]byte) (repositoryState, error) {
	roots, err := parseRoots(data[keyCert])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyCert, err)
	}
	keys := pemBlocks(data[keyKey])
	if len(keys) != len(roots) {
		return nil, fmt.Errorf("there are %d certificates in %s and %d keys in %s, want one key for each", len(roots), keyCert, len(keys), keyKey)
	}
	var state repositoryState
	for i, root := range roots {
		if time.Now().After(root.NotAfter) {
			continue
		}
		made, err := newRepositoryCA([]byte(encodeRoots(root)), keys[i])
		if err != nil {
			return nil, err
		}
		state = append(state, made)
	}
	slices.SortStableFunc(state, func(a, b *repositoryCA) int { return a.certificate.NotAfter.Compare(b.certificate.NotAfter) })
	return state, nil
}

// pemBlocks cuts PEM into its blocks.
func pemBlocks(text []byte) [][]byte {
	var all [][]byte
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return all
		}
		all = append(all, pem.EncodeToMemory(block))
		text = rest
	}
}

func (s repositoryState) certificates() []byte {
	var text []byte
	for _, root := range s {
		text = append(text, encodeRoots(root.certificate)...)
	}
	return text
}

func (s repositoryState) encode() map[string][]byte {
	var keys []byte
	for _, root := range s {
		keys = append(keys, root.key...)
	}
	return map[string][]byte{keyCert: s.certificates(), keyKey: keys}
}

// advance returns the state that should be now: without what is over, and with the next
// root once the last one has no more than the overlap left.
func (s repositoryState) advance(now time.Time) (repositoryState, error) {
	next := slices.DeleteFunc(slices.Clone(s), func(root *repositoryCA) bool { return now.After(root.certificate.NotAfter) })
	if len(next) > 0 && now.Before(next.last().NotAfter.Add(-repositoryOverlap)) {
		return next, nil
	}
	cert, key, err := issuer.NewRoot("outrigger-repository "+randomName(), issuer.RootLife)
	if err != nil {
		return nil, err
	}
	made, err := newRepositoryCA(cert, key)
	if err != nil {
		return nil, err
	}
	return append(next, made), nil
}

func (s repositoryState) last() *x509.Certificate { return s[len(s)-1].certificate }

// signing is the last one that agents have been told of for long enough, and else the
// first.
func (s repositoryState) signing(now time.Time) *repositoryCA {
	for _, root := range slices.Backward(s) {
		if !now.Before(root.certificate.NotBefore.Add(repositoryPropagation)) {
			return root
		}
	}
	return s[0]
}

// wake is when there is something to do next.
func (s repositoryState) wake(now time.Time) time.Time {
	wake := s.last().NotAfter.Add(-repositoryOverlap)
	for _, root := range s {
		for _, then := range []time.Time{root.certificate.NotBefore.Add(repositoryPropagation), root.certificate.NotAfter.Add(time.Second)} {
			if then.After(now) {
				wake = earliest(wake, then)
			}
		}
	}
	return wake
}
