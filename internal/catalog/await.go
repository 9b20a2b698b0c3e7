package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// awaitPatience is how long a proxy is waited for before it is asked for.
	awaitPatience = 3 * time.Second
	// awaitAsking is how long asking may take.
	awaitAsking = 10 * time.Second
	// recheck is the time after which a workload that was asked for, and that nobody
	// has told of since, is asked for again.
	recheck = time.Minute
)

// ErrNoProxy says that a workload is not there, or has no proxy in the mesh.
var ErrNoProxy = errors.New("no such proxy in the mesh")

// Find asks for a workload of the identity by the UID of its pod. It returns false if
// there is none, and an error if that cannot be found out.
type Find func(ctx context.Context, identity mesh.Identity, uid string) (mesh.Fact, bool, error)

// AwaitView returns the View of a proxy that has just come. If there is none it waits
// a few seconds for the fact that makes it, then asks Options.Find for that. The error
// wraps ErrNoProxy if the mesh has no such proxy or one of another identity; else it is
// that of Find or of ctx.
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
		if view, err = c.ask(ctx, identity, uid); err != nil {
			return nil, err
		}
	}
	if is := view.Proxy.Identity; is != identity {
		return nil, fmt.Errorf("%w: pod %s is %s and not %s", ErrNoProxy, view.Proxy.Name, is, identity)
	}
	return view, nil
}

// await returns nil without an error if there is no View for some time.
func (c *Catalog) await(ctx context.Context, uid string) (*mesh.View, error) {
	patience := time.NewTimer(c.options.Patience)
	defer patience.Stop()
	for {
		// Asked for before looking, so that a View which comes in between is not missed.
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

// ask has a workload found and joined.
func (c *Catalog) ask(ctx context.Context, identity mesh.Identity, uid string) (*mesh.View, error) {
	unknown := fmt.Errorf("%w: pod with UID %q of %s", ErrNoProxy, uid, identity)
	if c.options.Find == nil {
		return nil, unknown
	}
	asking, cancel := context.WithTimeoutCause(ctx, awaitAsking, fmt.Errorf("no answer in %s", awaitAsking))
	defer cancel()
	fact, found, err := c.options.Find(asking, identity, uid)
	if err != nil {
		return nil, fmt.Errorf("asking for the pod with UID %q of %s: %w", uid, identity, err)
	}
	if !found {
		return nil, unknown
	}
	select {
	case <-c.borrow(fact, identity, uid):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if view, ok := c.View(uid); ok {
		return view, nil
	}
	return nil, fmt.Errorf("%w: pod %s/%s has no sidecar of the mesh", ErrNoProxy, fact.Object.Namespace, fact.Object.Name)
}

// borrow applies a fact that did not come from where facts come from. What it returns
// is closed once the fact is in the Snapshot.
func (c *Catalog) borrow(fact mesh.Fact, identity mesh.Identity, uid string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, newer := c.pending[fact.Object]; !newer {
		c.pending[fact.Object] = fact
		timer := time.AfterFunc(c.options.Recheck, func() { c.recheck(fact, identity, uid) })
		if former := c.borrowed[fact.Object]; former != nil {
			former.Stop()
		}
		c.borrowed[fact.Object] = timer
	}
	c.notify()
	return c.joining
}

// recheck takes a borrowed fact back if there is no such workload any more: its end
// may have been told of before the fact was borrowed.
func (c *Catalog) recheck(fact mesh.Fact, identity mesh.Identity, uid string) {
	ctx, cancel := context.WithTimeout(context.Background(), awaitAsking)
	defer cancel()
	_, found, err := c.options.Find(ctx, identity, uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	timer, borrowed := c.borrowed[fact.Object]
	switch {
	case !borrowed:
	case err != nil || found:
		timer.Reset(c.options.Recheck)
	default:
		delete(c.borrowed, fact.Object)
		c.pending[fact.Object] = mesh.Fact{Object: fact.Object}
		c.notify()
	}
}

// returnAll ends all asking again.
func (c *Catalog) returnAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, timer := range c.borrowed {
		timer.Stop()
	}
	clear(c.borrowed)
}
