package controller

import (
	"context"
	"log/slog"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/jwks"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// newKeys returns the stage that fetches the keys of tokens' issuers, and the function that applies the
// facts of objects and tells it which keys they ask for. Each replica fetches for its own proxies.
func newKeys(to *catalog.Catalog, live *source.Live, log *slog.Logger) (keys *jwks.Fetcher, apply func(...fact.Fact)) {
	keys = jwks.New(jwks.Options{Apply: to.Apply, Log: log})
	live.OnChange(func(c *source.Config) { keys.Allow(c.KeyHosts()) })
	return keys, func(facts ...fact.Fact) {
		keys.Observe(facts...)
		to.Apply(facts...)
	}
}

// settle waits until the first keys have been fetched, after the objects were read.
func settle(ctx context.Context, keys *jwks.Fetcher, read <-chan struct{}) bool {
	if !wait(ctx, read) {
		return false
	}
	keys.Settle(ctx)
	return ctx.Err() == nil
}
