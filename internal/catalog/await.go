package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// defaultPatience is how long AwaitView waits before it looks a proxy up.
	defaultPatience = 3 * time.Second
	// findTimeout limits one call of Find.
	findTimeout = 10 * time.Second
	// defaultRecheck is the default of Options.Recheck.
	defaultRecheck = time.Minute
)

// ErrNoProxy reports that a workload does not exist or has no proxy in the mesh.
var ErrNoProxy = errors.New("no such proxy in the mesh")

// Find looks up a workload by the UID of its pod. The identity is that of the caller. It
// returns false if there is no such workload, and an error if the lookup failed.
type Find func(ctx context.Context, identity mesh.Identity, uid string) (fact.Fact, bool, error)

// AwaitView returns the View of a proxy that has just connected. If there is none, it
// waits a few seconds for the fact of its workload and then calls Options.Find. The error
// wraps ErrNoProxy if the mesh has no such proxy or the proxy has a different identity.
// Otherwise it is the error of Find or the cause of ctx.
func (c *Catalog) AwaitView(ctx context.Context, identity mesh.Identity, uid string) (*mesh.View, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	view, err := c.await(ctx, uid)
	if err != nil {
		return nil, err
	}
	if view == nil {
		if view, err = c.find(ctx, identity, uid); err != nil {
			return nil, err
		}
	}
	if is := view.Proxy.Identity; is != identity {
		return nil, fmt.Errorf("%w: pod %s has identity %s, not %s", ErrNoProxy, view.Proxy.Name, is, identity)
	}
	return view, nil
}

// await waits for the View for the time of Patience, then returns nil without an error.
func (c *Catalog) await(ctx context.Context, uid string) (*mesh.View, error) {
	patience := time.NewTimer(c.options.Patience)
	defer patience.Stop()
	for {
		// Subscribe before checking, so that no View is missed in between.
		changed, leave := c.awaited.enter(uid)
		view, ok := c.View(uid)
		if ok {
			leave()
			return view, nil
		}
		select {
		case <-changed:
		case <-patience.C:
			leave()
			return nil, nil
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
		leave()
	}
}

// find looks up the workload and joins its fact.
func (c *Catalog) find(ctx context.Context, identity mesh.Identity, uid string) (*mesh.View, error) {
	unknown := fmt.Errorf("%w: pod with UID %q of %s", ErrNoProxy, uid, identity)
	if c.options.Find == nil {
		return nil, unknown
	}
	asking, cancel := context.WithTimeoutCause(ctx, findTimeout, fmt.Errorf("no answer in %s", findTimeout))
	defer cancel()
	f, found, err := c.options.Find(asking, identity, uid)
	if err != nil {
		return nil, fmt.Errorf("finding the pod with UID %q of %s: %w", uid, identity, err)
	}
	if !found {
		return nil, unknown
	}
	select {
	case <-c.addProvisional(f, identity, uid):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if view, ok := c.View(uid); ok {
		return view, nil
	}
	return nil, fmt.Errorf("%w: pod %s/%s has no sidecar of the mesh", ErrNoProxy, f.Object.Namespace, f.Object.Name)
}

// addProvisional applies a fact from Options.Find. The channel is closed once the fact is
// in the Snapshot.
func (c *Catalog) addProvisional(f fact.Fact, identity mesh.Identity, uid string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, newer := c.pending[f.Object]; !newer {
		c.pending[f.Object] = f
		timer := time.AfterFunc(c.options.Recheck, func() { c.recheck(f, identity, uid) })
		if former := c.provisional[f.Object]; former != nil {
			former.Stop()
		}
		c.provisional[f.Object] = timer
	}
	c.wake.Ring()
	return c.joining
}

// recheck removes a provisional fact if the workload no longer exists: its deletion may
// have been applied before the fact was found.
func (c *Catalog) recheck(f fact.Fact, identity mesh.Identity, uid string) {
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	_, found, err := c.options.Find(ctx, identity, uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	timer, provisional := c.provisional[f.Object]
	switch {
	case !provisional:
	case err != nil || found:
		timer.Reset(c.options.Recheck)
	default:
		delete(c.provisional, f.Object)
		c.pending[f.Object] = fact.Fact{Object: f.Object}
		c.wake.Ring()
	}
}

// stopRechecks stops all timers of provisional facts.
func (c *Catalog) stopRechecks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, timer := range c.provisional {
		timer.Stop()
	}
	clear(c.provisional)
}
