package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// origin is where the objects of a mesh come from, and what that place knows besides: a
// cluster or a folder.
type origin struct {
	// config follows the MeshConfig. What it says counts once read is closed, when all
	// that there was at first has been read.
	config *source.Live
	read   <-chan struct{}
	// feed passes on facts until ctx ends.
	feed func(ctx context.Context, to *catalog.Catalog) error
	// find asks for a workload that no fact has told of; nil where there are no others.
	find catalog.Find
	// tell has what is found told where the objects are, and the trust bundle published
	// there, until ctx ends.
	tell func(ctx context.Context, of *catalog.Catalog, identities *identities) error
	// run is what else has to run until ctx ends.
	run []func(ctx context.Context) error

	// reviewer says whose a token is, member whether a workload is in the mesh, and roots
	// which issuers there are.
	reviewer identity.TokenReviewer
	member   func(ctx context.Context, w identity.Workload) error
	roots    rootSources

	probes []health.Probes
	// problems are those that are not in a Snapshot.
	problems func() []mesh.Problem
	// warn leaves an Event behind that says why something does not work.
	warn func(ctx context.Context, err error) error
	// warnPod leaves an Event behind about a pod's proxy; nil where there are none.
	warnPod func(ctx context.Context, namespace, pod, uid, message string) error
	// review says who may look at proxies; nil where there is no API server.
	review debug.Review
	// rest reaches the API server; nil where there is none.
	rest *rest.Config
}

// serve wires the controller: objects to facts, facts to a Snapshot with the Views of
// its proxies, and Views to what each proxy's driver serves it, under certificates of
// the mesh. Beside it the Problems that come up on the way are told.
func (f *controllerFlags) serve(ctx context.Context, from *origin, metrics *prometheus.Registry, log *slog.Logger) error {
	listeners, err := f.listen()
	if err != nil {
		return err
	}
	defer listeners.close()
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	group, ctx := errgroup.WithContext(ended)

	f.catalog.Log, f.catalog.Find, f.catalog.Features, f.catalog.Trusts = log, from.find, sidecar.Features, true
	whole := catalog.New(f.catalog)
	proxies := registry.New(registry.Options{
		Limit: from.config.GetMaxDataPlaneConnections, Report: whole.Report, Registerer: metrics,
	})
	identities, err := f.newIdentities(from, failures{from, proxies, log}.take, metrics, log)
	if err != nil {
		return err
	}
	shown := debug.Sources{
		Catalog: whole, Config: from.config, Proxies: proxies.Proxies, Problems: func() []mesh.Problem { return append(from.problems(), identities.problems()...) },
		Certificates: func() any { return identities.manager.Certificates() },
	}
	pages := debug.NewServer(f.address(f.debugListen), log)
	drivers := newDrivers(driver.ControllerContext{
		OsmNamespace: f.mesh.namespace,
		KubeConfig:   from.rest,
		Configurator: from.config,
		MeshCatalog:  meshCatalog{whole},
		CertManager:  identities.manager,
		MsgBroker:    whole,
		BindAddress:  f.bindAddress,
		Proxies:      proxies,
		Log:          log,
	}, from, identities.names, end)
	drivers.show = func(sets ...map[string]http.Handler) error {
		all, err := debug.Merge(append(sets, debug.Pages(shown))...)
		if err == nil {
			pages.Show(all)
		}
		return err
	}
	from.config.OnChange(func(c *source.Config) { pages.Switch(c.IsDebugServerEnabled()) })
	if err := drivers.show(); err != nil {
		return err
	}

	runs := append(from.run,
		func(ctx context.Context) error { return from.feed(ctx, whole) },
		always(whole.Run),
		identities.run,
		func(ctx context.Context) error { return identities.follow(ctx, whole.Trust) },
		func(ctx context.Context) error { return identities.service.Serve(ctx, listeners.identity) },
		func(ctx context.Context) error { return from.tell(ctx, whole, identities) },
		always(proxies.Run),
		func(ctx context.Context) error { return drivers.run(ctx, whole) },
		always(pages.Run),
		func(ctx context.Context) error { return serveProxies(ctx, listeners.proxies, shown, from.review, log) },
		func(ctx context.Context) error {
			return serveProbes(ctx, listeners.health, metrics, log, func() health.Probes {
				return health.Join("outrigger-controller", append(f.probes(from, whole, identities), drivers.probes()...)...)
			})
		},
	)
	for _, run := range runs {
		group.Go(func() error { return run(ctx) })
	}
	err = group.Wait()
	if cause := context.Cause(ended); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// always is for what never fails.
func always(run func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// meshCatalog is a catalog as drivers see it.
type meshCatalog struct{ *catalog.Catalog }

var _ driver.MeshCataloger = meshCatalog{}

// AwaitView returns the View of a proxy that has just connected.
func (c meshCatalog) AwaitView(ctx context.Context, peer driver.Peer) (*mesh.View, error) {
	view, err := c.Catalog.AwaitView(ctx, peer.Identity, peer.ProxyUID)
	if errors.Is(err, catalog.ErrNoProxy) {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnknownProxy, err)
	}
	return view, err
}

func (f *controllerFlags) probes(from *origin, whole *catalog.Catalog, identities *identities) []health.Probes {
	return append([]health.Probes{
		closed("objects of the mesh", from.read),
		closed("snapshot of the mesh", whole.Ready()),
		closed("certificates of the mesh", identities.manager.Ready()),
	}, from.probes...)
}

// closed is ready when the channel is closed.
func closed(id string, channel <-chan struct{}) health.Probes {
	return health.Func{ID: id, Ready: func() bool {
		select {
		case <-channel:
			return true
		default:
			return false
		}
	}}
}
