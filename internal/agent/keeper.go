package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// keeper keeps the identity files: it gets a certificate and the trust bundle, and renews
// both. But for the fields that say so, everything belongs to the goroutine of
// run.
type keeper struct {
	subject    subject
	signer     signer
	store      *store
	bundleFile string
	pace       pace
	log        *slog.Logger
	metrics    *metrics
	// changed is called after the files were replaced, but for the first time.
	changed func()

	// got is closed once the files are there. Any goroutine may wait for it.
	got chan struct{}
	// end is when the certificate ends, in Unix seconds, 0 before there is one. Any
	// goroutine may read it.
	end atomic.Int64

	trust   trust
	mounted []byte
	hint    hint
	held    *held
	// next is when a certificate is asked for, and asking says that it was, and that no
	// answer has come yet.
	next    time.Time
	asking  bool
	answers chan signed
	retry   backoff
	// told are the reasons of failures that were logged since the last success.
	told map[string]bool
	// early rings when somebody needs newer files than these, and hastened is when that was
	// last heeded.
	early    bell
	hastened time.Time
}

// signed is the answer of the signing service, and the key that it is for.
type signed struct {
	key    *ecdsa.PrivateKey
	text   keyPEM
	answer *identityv1.SignResponse
	// by is which of the contacts has verified the service.
	by  int
	err error
}

// held is the identity that is in the files.
type held struct {
	material
	certs []*x509.Certificate
}

func newKeeper(subject subject, signer signer, store *store, bundleFile string, pace pace, log *slog.Logger, metrics *metrics, changed func()) *keeper {
	return &keeper{
		subject: subject, signer: signer, store: store, bundleFile: bundleFile, pace: pace, log: log, metrics: metrics, changed: changed,
		got: make(chan struct{}), answers: make(chan signed, 1), told: make(map[string]bool),
		early: newBell(), retry: pace.retry, hint: hint{backoff: pace.hint},
	}
}

// now has no monotonic reading, so that what is due is due after the machine has slept.
func now() time.Time { return time.Now().Round(0) }

// run keeps the files until ctx ends.
func (k *keeper) run(ctx context.Context) {
	k.readMounted()
	k.reuse()
	for {
		if !k.asking && !now().Before(k.next) {
			k.ask(ctx)
		}
		wait := k.pace.poll
		if !k.asking {
			wait = min(wait, max(k.next.Sub(now()), 0))
		}
		select {
		case <-ctx.Done():
			return
		case s := <-k.answers:
			k.asking = false
			k.take(s)
		case <-k.early:
			if sooner := now().Add(jitter(k.pace.reuse)); sooner.Before(k.next) && now().Sub(k.hastened) >= k.pace.hasten {
				k.hastened, k.next = now(), sooner
			}
		case <-time.After(wait):
		}
		if k.readMounted() {
			k.heed()
		}
	}
}

// hasten has a certificate asked for soon, for what the answer says beside, though not
// again and again. Any goroutine may call it.
func (k *keeper) hasten() { k.early.ring() }

// readMounted reads the mounted trust bundle and reports whether its roots changed. A
// file that is gone, or that cannot be read, changes nothing: the last good roots stay.
func (k *keeper) readMounted() bool {
	text, err := os.ReadFile(k.bundleFile)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			k.tell("mounted bundle", fmt.Errorf("reading the mounted trust bundle: %w", err))
		}
		return false
	}
	if bytes.Equal(text, k.mounted) {
		return false
	}
	k.mounted = text
	roots, err := parseRoots(text)
	if err != nil {
		k.log.Error("the mounted trust bundle is not good; the last good one stays", "file", k.bundleFile, "error", err)
		return false
	}
	k.trust.mounted = roots
	return true
}

// heed has the signing service asked soon because the mounted file has changed: at once
// if the pod has no certificate yet.
func (k *keeper) heed() {
	switch {
	case k.held == nil && k.retry.failures > 0:
		k.next = now()
	case k.held != nil && k.trust.differ():
		k.hint.backoff.reset()
		k.soon(k.pace.hint.first)
	}
}

// soon brings the next request forward, though not to less than the pause after the last
// that the hint caused.
func (k *keeper) soon(pause time.Duration) {
	due := k.hint.last.Add(pause)
	if due.Before(now()) {
		due = now()
	}
	k.hint.given = true
	if due = due.Add(jitter(k.pace.reuse)); due.Before(k.next) {
		k.log.Info("the certificate is renewed before its time", "reason", "the mounted trust bundle is not that of the latest answer")
		k.next = due
	}
}

// hint is what comes of a mounted file that has changed. Whoever changes it again and
// again has no more asked for than is bearable.
type hint struct {
	// given says that the next request is because of the file, and last is when that was
	// so before.
	given bool
	last  time.Time
	// backoff is how long to wait after last if the file still differs.
	backoff backoff
}

// followHint asks again, ever later, as long as the file that was the reason of a request
// has other roots than the answer: it may be that of a controller that is late.
func (k *keeper) followHint() {
	if !k.hint.given {
		return
	}
	k.hint.given, k.hint.last = false, now()
	if k.trust.differ() {
		k.soon(k.hint.backoff.next())
	}
}

// reuse takes over the identity that an agent before this one has left in the folder,
// so that the proxy of a container that was restarted has not to wait for the
// controller. It is renewed soon all the same, since the roots may have changed. The
// roots of the latest answer count even if the rest is not good any more.
func (k *keeper) reuse() {
	m, err := k.store.read()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			k.log.Warn("the identity files cannot be read; they are replaced", "error", err)
		}
		return
	}
	roots, err := parseRoots(m.bundle)
	if err != nil {
		k.log.Info("the identity files are not good any more; they are replaced", "reason", "the trust bundle: "+err.Error())
		return
	}
	k.trust.answered = roots
	certs, err := k.inspect(m)
	if err != nil {
		k.log.Info("the identity files are not good any more; they are replaced", "reason", err.Error())
		return
	}
	if err := k.store.write(m); err != nil {
		k.log.Warn("the identity files cannot be used", "error", err)
		return
	}
	k.log.Info("the identity files of an earlier start are used until they are renewed", "until", pki.End(certs))
	k.next = now().Add(jitter(k.pace.reuse))
	k.hold(m, certs)
}

// inspect returns the certificates of identity files if they are good now.
func (k *keeper) inspect(m material) ([]*x509.Certificate, error) {
	certs, err := pki.Parse(m.chain)
	if err != nil {
		return nil, fmt.Errorf("the certificate: %w", err)
	}
	if _, err := tls.X509KeyPair(m.chain, m.key); err != nil {
		return nil, errors.New("the key does not fit the certificate")
	}
	if _, err := k.subject.leafOf(certs, certs[0].PublicKey); err != nil {
		return nil, err
	}
	return certs, verify(certs, k.trust.answered)
}

// ask has the signing service asked by a goroutine of its own, since the mounted file
// must be followed meanwhile.
func (k *keeper) ask(ctx context.Context) {
	contacts := k.trust.contacts()
	if len(contacts) == 0 {
		k.fail(&failure{noBundle, fmt.Errorf("there is no trust bundle in %s yet; the controller keeps it in ConfigMap outrigger-ca of each monitored namespace", k.bundleFile)})
		return
	}
	k.asking = true
	go func() {
		ctx, cancel := context.WithTimeout(ctx, k.pace.sign)
		defer cancel()
		k.answers <- k.request(ctx, contacts)
	}()
}

// request asks for a certificate of a new key.
func (k *keeper) request(ctx context.Context, contacts []*x509.CertPool) signed {
	key, err := pki.NewKey()
	if err != nil {
		return signed{err: &failure{internal, err}}
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		return signed{err: &failure{internal, err}}
	}
	request, err := k.subject.request(key)
	if err != nil {
		return signed{err: &failure{internal, err}}
	}
	answer, by, err := k.signer.sign(ctx, request, contacts)
	return signed{key, text, answer, by, err}
}

// take puts an answer into the files and says when the next certificate is due.
func (k *keeper) take(s signed) {
	m, certs, err := k.use(s)
	if err != nil {
		k.fail(err)
		return
	}
	if k.retry.failures > 0 {
		k.log.Info("there is a certificate again", "attempts", k.retry.failures+1)
	}
	k.retry.reset()
	clear(k.told)
	k.next = pki.Renewal(now(), pki.End(certs))
	k.metrics.renewals.Add(1)
	k.log.Info("certificate issued", "identity", k.subject.identity.String(), "until", pki.End(certs))
	k.hold(m, certs)
	k.followHint()
	// TLS and gRPC leave garbage for which there is no use until hours later.
	debug.FreeOSMemory()
}

// use checks an answer, by its own roots, and puts it into the files.
func (k *keeper) use(s signed) (material, []*x509.Certificate, error) {
	fail := func(reason string, err error) (material, []*x509.Certificate, error) {
		return material{}, nil, &failure{reason, err}
	}
	if s.err != nil {
		return material{}, nil, s.err
	}
	roots, err := parseRoots(s.answer.GetBundle())
	if err != nil {
		return fail(badAnswer, fmt.Errorf("the answer's trust bundle: %w", err))
	}
	certs, err := pki.Parse(s.answer.GetChain())
	if err != nil {
		return fail(badAnswer, fmt.Errorf("the answer's certificate: %w", err))
	}
	if _, err := k.subject.leafOf(certs, s.key.Public()); err != nil {
		return fail(badAnswer, err)
	}
	if err := verify(certs, roots); err != nil {
		return fail(badAnswer, err)
	}
	trust := trust{answered: roots, mounted: k.trust.mounted}
	m := material{key: s.text, chain: s.answer.GetChain(), bundle: roots.Encode()}
	if err := k.store.write(m); err != nil {
		return fail(noStore, err)
	}
	if s.by > 0 {
		k.log.Warn("the signing service was verified by the mounted trust bundle, and not by what it had answered before; its answer counts now")
	}
	if k.held != nil && !bytes.Equal(k.held.bundle, m.bundle) {
		k.log.Info("the trust bundle has changed")
	}
	k.trust = trust
	return m, certs, nil
}

// hold notes what is in the files.
func (k *keeper) hold(m material, certs []*x509.Certificate) {
	first := k.held == nil
	k.held = &held{m, certs}
	k.end.Store(pki.End(certs).Unix())
	if first {
		close(k.got)
	} else {
		k.changed()
	}
}

// fail notes a failure and says when to try again.
func (k *keeper) fail(err error) {
	reason := internal
	if f := (*failure)(nil); errors.As(err, &f) {
		reason = f.reason
	}
	k.metrics.failed(reason)
	k.tell(reason, fmt.Errorf("no certificate: %w", err))
	k.retry.most = k.pace.retryUrgent
	if left := k.left(); left > 0 {
		// What is left of a short life must do for several attempts.
		k.retry.most = min(k.pace.retry.most, max(left/10, k.pace.retry.first))
	}
	k.next = now().Add(spread(k.retry.next()))
}

// left returns how long the certificate is still good for.
func (k *keeper) left() time.Duration {
	if k.held == nil {
		return 0
	}
	return pki.End(k.held.certs).Sub(now())
}

// tell logs the first failure of each kind, and the others where details are wanted.
func (k *keeper) tell(kind string, err error) {
	level := slog.LevelDebug
	if !k.told[kind] {
		level = slog.LevelWarn
		if k.held != nil && k.left() <= 0 {
			level = slog.LevelError
		}
	}
	k.told[kind] = true
	k.log.Log(context.Background(), level, err.Error(), "kind", kind, "valid", k.left().Round(time.Second).String())
}
