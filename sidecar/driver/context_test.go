package driver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// contextOf returns each kind of context with a parent.
var contextOf = []struct {
	name string
	make func(context.Context) context.Context
}{
	{"InjectorContext", func(parent context.Context) context.Context { return &driver.InjectorContext{Context: parent} }},
	{"ControllerContext", func(parent context.Context) context.Context { return &driver.ControllerContext{Context: parent} }},
}

type key struct{}

func TestContextIsLive(t *testing.T) {
	for _, c := range contextOf {
		t.Run(c.name, func(t *testing.T) {
			deadline := time.Now().Add(time.Hour)
			parent, cancel := context.WithDeadline(context.WithValue(context.Background(), key{}, "value"), deadline)
			defer cancel()
			ctx := c.make(parent)
			child, cancelChild := context.WithCancel(ctx)
			defer cancelChild()

			if got, ok := child.Deadline(); !ok || !got.Equal(deadline) {
				t.Errorf("Deadline() = %v, %t, want %v", got, ok, deadline)
			}
			if got := child.Value(key{}); got != "value" {
				t.Errorf("Value of the parent's key = %v", got)
			}
			if err := child.Err(); err != nil {
				t.Errorf("Err() = %v before the parent ends", err)
			}
			cancel()
			select {
			case <-child.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the parent was cancelled, but the child is not done")
			}
			for name, ctx := range map[string]context.Context{"it": ctx, "its child": child} {
				if !errors.Is(ctx.Err(), context.Canceled) {
					t.Errorf("Err() of %s = %v, want context.Canceled", name, ctx.Err())
				}
			}
		})
	}
}

func TestContextDeadlinePasses(t *testing.T) {
	for _, c := range contextOf {
		t.Run(c.name, func(t *testing.T) {
			parent, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			ctx, cancel := context.WithCancel(c.make(parent))
			defer cancel()
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the parent's deadline has passed, but the child is not done")
			}
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("Err() = %v, want context.DeadlineExceeded", ctx.Err())
			}
		})
	}
}

func TestContextWithoutParent(t *testing.T) {
	for _, c := range contextOf {
		t.Run(c.name, func(t *testing.T) {
			ctx := c.make(nil)
			if _, ok := ctx.Deadline(); ok || ctx.Done() != nil || ctx.Err() != nil || ctx.Value(key{}) != nil {
				t.Error("without a Context it differs from context.Background")
			}
			child, cancel := context.WithCancel(ctx)
			cancel()
			if !errors.Is(child.Err(), context.Canceled) || ctx.Err() != nil {
				t.Errorf("a cancelled child has the error %v, but its parent %v", child.Err(), ctx.Err())
			}
		})
	}
}

func TestArgumentsAreFound(t *testing.T) {
	// The calls and lookups of the original proposal.
	injector := driver.InjectorContext{MeshName: "osm"}
	ctx, cancel := context.WithCancel(&injector)
	defer cancel()
	if got := ctx.Value(&driver.InjectorCtxKey); got != &injector {
		t.Errorf("the value of InjectorCtxKey is %v", got)
	}
	if got, err := driver.InjectorFrom(ctx); err != nil || got != &injector {
		t.Errorf("InjectorFrom returned %v, %v", got, err)
	}
	if _, err := driver.ControllerFrom(ctx); err == nil || err.Error() != "missing Controller Context" {
		t.Errorf("ControllerFrom of an InjectorContext returned %v", err)
	}

	controller := driver.ControllerContext{OsmNamespace: "osm-system"}
	ctx, cancel = context.WithCancel(&controller)
	defer cancel()
	if got := ctx.Value(&driver.ControllerCtxKey); got != &controller {
		t.Errorf("the value of ControllerCtxKey is %v", got)
	}
	if got, err := driver.ControllerFrom(ctx); err != nil || got != &controller {
		t.Errorf("ControllerFrom returned %v, %v", got, err)
	}
	if _, err := driver.InjectorFrom(ctx); err == nil || err.Error() != "missing Injector Context" {
		t.Errorf("InjectorFrom of a ControllerContext returned %v", err)
	}
}

func TestOneContextInTheOther(t *testing.T) {
	controller := &driver.ControllerContext{}
	injector := &driver.InjectorContext{Context: controller}
	if got, err := driver.ControllerFrom(injector); err != nil || got != controller {
		t.Errorf("ControllerFrom returned %v, %v", got, err)
	}
}

func TestNilArgumentsAreMissing(t *testing.T) {
	ctx := context.WithValue(context.Background(), &driver.InjectorCtxKey, (*driver.InjectorContext)(nil))
	if _, err := driver.InjectorFrom(ctx); err == nil || err.Error() != "missing Injector Context" {
		t.Errorf("InjectorFrom of a nil InjectorContext returned %v", err)
	}
	ctx = context.WithValue(context.Background(), &driver.ControllerCtxKey, "something else")
	if _, err := driver.ControllerFrom(ctx); err == nil || err.Error() != "missing Controller Context" {
		t.Errorf("ControllerFrom of something else returned %v", err)
	}
}
