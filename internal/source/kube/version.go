package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// versionTimeout limits one request, independent of its callers.
const versionTimeout = 10 * time.Second

// NativeSidecars reports whether the cluster enables restartable init containers by
// default, as Kubernetes does since 1.29. The API server is queried until it has answered
// once. Concurrent callers share one request, and each waits no longer than its ctx.
func (s *Source) NativeSidecars(ctx context.Context) (bool, error) {
	if known := s.native.Load(); known != nil {
		return *known, nil
	}
	answer := s.versionCalls.DoChan("", func() (any, error) {
		// The request is shared, so it must survive the caller that started it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), versionTimeout)
		defer cancel()
		return s.queryVersion(ctx)
	})
	select {
	case result := <-answer:
		if result.Err != nil {
			return false, result.Err
		}
		return *s.native.Load(), nil
	case <-ctx.Done():
		return false, fmt.Errorf("querying the API server's version: %w", context.Cause(ctx))
	}
}

// queryVersion stores whether there are native sidecars.
func (s *Source) queryVersion(ctx context.Context) (any, error) {
	if s.native.Load() != nil {
		return nil, nil // A look-up ended between the caller's check and this one.
	}
	info, err := s.discovery.ServerVersionWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("querying the API server's version: %w", err)
	}
	parsed, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's version %q: %w", info.GitVersion, err)
	}
	s.native.Store(new(parsed.AtLeast(version.MajorMinor(1, 29))))
	return nil, nil
}
