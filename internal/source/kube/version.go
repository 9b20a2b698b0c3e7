package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// versionTimeout is how long one look-up may take, whoever waits for it.
const versionTimeout = 10 * time.Second

// NativeSidecars reports whether the cluster runs init containers that go on
// running by default, which Kubernetes does from 1.29. The API server is asked
// until it has answered once, and by one goroutine at a time; the others wait for
// its answer, each for as long as its own ctx lasts.
func (s *Source) NativeSidecars(ctx context.Context) (bool, error) {
	if known := s.native.Load(); known != nil {
		return *known, nil
	}
	answer := s.versionCalls.DoChan("", func() (any, error) {
		// The look-up is for all who wait, so it outlives the one who began it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), versionTimeout)
		defer cancel()
		return s.askVersion(ctx)
	})
	select {
	case result := <-answer:
		if result.Err != nil {
			return false, result.Err
		}
		return *s.native.Load(), nil
	case <-ctx.Done():
		return false, fmt.Errorf("asking the API server for its version: %w", context.Cause(ctx))
	}
}

// askVersion makes it known whether there are native sidecars.
func (s *Source) askVersion(ctx context.Context) (any, error) {
	if s.native.Load() != nil {
		return nil, nil // A look-up ended between the caller's check and this one.
	}
	info, err := s.discovery.ServerVersionWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking the API server for its version: %w", err)
	}
	parsed, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's version %q: %w", info.GitVersion, err)
	}
	s.native.Store(new(parsed.AtLeast(version.MajorMinor(1, 29))))
	return nil, nil
}
