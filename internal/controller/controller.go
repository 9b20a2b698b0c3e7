// Package controller is the wiring of the process that serves the proxies of a mesh: from
// objects to facts, from these to a Snapshot with the Views of its proxies, and from Views to
// what each proxy's driver serves.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options are what a controller is run with. Either Cluster or Folder is set. The command's
// flags, whose names they have, describe the others.
type Options struct {
	Mesh    meshconfig.Mesh
	Cluster *Cluster
	Folder  *Folder
	// OnConfig is called with the mesh's configuration: with the first one and after each
	// change. It must not block.
	OnConfig func(*source.Config)
	Log      *slog.Logger

	// BindAddress is an IP address, put before those of the others that are a port only. It
	// may be empty, as may ProxyListen, which then nobody serves.
	BindAddress                                            string
	HealthListen, IdentityListen, DebugListen, ProxyListen string

	// CASecret is the Secret of the mesh's own CA, and RootPropagation how long a new root is
	// trusted before it signs. Empty and 0 mean the defaults of package root.
	CASecret        string
	RootPropagation time.Duration
	// ClusterDomain ends the DNS names of services.
	ClusterDomain string
	// LeaderElect lets one of several replicas be the one that writes.
	LeaderElect bool
	// Catalog has the times that changes are held off. The rest of it is Run's to fill in.
	Catalog catalog.Options
}

// Cluster is where a mesh is read from that an API server has.
type Cluster struct {
	// Connect says how it is reached.
	Connect func() (*rest.Config, error)
	// TemplateConfigMap is the injector's ConfigMap, by which pods without a sidecar are
	// judged; empty for none.
	TemplateConfigMap string
}

// Folder is where a mesh is read from that has no API server.
type Folder struct {
	// Files are files and folders of manifests.
	Files []string
	// CADir is the folder of the CA and of the key for tokens.
	CADir string
}

// Run reads a mesh and serves its proxies until ctx ends, which is no error. An error leaves an
// Event in the cluster.
func Run(ctx context.Context, o Options) error {
	metrics := prometheus.NewRegistry()
	from, err := o.open(metrics)
	if err != nil {
		return err
	}
	from.settings().OnChange(o.OnConfig)
	err = o.serve(ctx, from, metrics)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if lost := from.warn(ctx, err); lost != nil {
		return errors.Join(err, fmt.Errorf("no Event reports it: %w", lost))
	}
	return err
}

func (o *Options) open(metrics prometheus.Registerer) (origin, error) {
	if o.Folder != nil {
		return newFolder(*o.Folder, o)
	}
	return newCluster(*o.Cluster, o, metrics)
}

// serve is the way of the data, from the top to the bottom. Each stage reads what the one
// above it publishes.
func (o *Options) serve(ctx context.Context, from origin, metrics *prometheus.Registry) error {
	listeners, err := o.listen()
	if err != nil {
		return err
	}
	defer listeners.close()
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	group, ctx := errgroup.WithContext(ended)
	run := func(stage func(context.Context) error) { group.Go(func() error { return stage(ctx) }) }
	fail := func(err error) error {
		end(err)
		_ = group.Wait()
		return err
	}

	// Objects become facts, facts a Snapshot, and that a View for each proxy.
	options := o.Catalog
	options.Log, options.Find, options.Features, options.Trusts = o.Log, from.find(), sidecar.Features, true
	whole := catalog.New(options)
	run(func(ctx context.Context) error { return from.feed(ctx, whole) })
	run(always(whole.Run))

	// The proxies that are connected, with what they report.
	proxies := registry.New(registry.Options{
		Limit: from.settings().GetMaxDataPlaneConnections, Report: whole.Report, Registerer: metrics,
	})
	run(always(proxies.Run))

	// Certificates, for the controller and for the pods that ask; the catalog publishes what
	// they are trusted by.
	identities, err := o.newIdentities(from, failures{from, proxies, o.Log}.take, metrics)
	if err != nil {
		return fail(err)
	}
	run(identities.run)
	run(func(ctx context.Context) error { return identities.follow(ctx, whole.Trust) })
	run(func(ctx context.Context) error { return identities.service.Serve(ctx, listeners.identity) })

	// Drivers turn Views into what their proxies are served.
	pages := debug.NewServer(o.address(o.DebugListen), o.Log)
	shown := debug.Sources{
		Catalog: whole, Config: from.settings(), Proxies: proxies.Proxies, Problems: func() []mesh.Problem { return append(from.problems(), identities.roots.Problems()...) },
		Certificates: func() any { return identities.manager.Certificates() },
	}
	drivers := newDrivers(driver.ControllerContext{
		OsmNamespace: o.Mesh.Namespace,
		KubeConfig:   from.api().config,
		Configurator: from.settings(),
		MeshCatalog:  meshCatalog{whole},
		CertManager:  identities.manager,
		MsgBroker:    whole,
		BindAddress:  o.BindAddress,
		Proxies:      proxies,
		Log:          o.Log,
	}, from, identities.names, end)
	drivers.show = func(sets ...map[string]http.Handler) error {
		all, err := debug.Merge(append(sets, debug.Pages(shown))...)
		if err == nil {
			pages.Show(all)
		}
		return err
	}
	if err := drivers.show(); err != nil {
		return fail(err)
	}
	run(func(ctx context.Context) error { return drivers.run(ctx, whole) })

	// People read conditions, Events, pages, metrics and health.
	run(func(ctx context.Context) error { return from.report(ctx, whole, identities) })
	from.settings().OnChange(func(c *source.Config) { pages.Switch(c.IsDebugServerEnabled()) })
	run(always(pages.Run))
	run(func(ctx context.Context) error {
		return serveProxies(ctx, listeners.proxies, shown, from.api().review, o.Log)
	})
	run(func(ctx context.Context) error {
		return serveProbes(ctx, listeners.health, metrics, o.Log, func() health.Probes {
			return health.Join("outrigger-controller", append(probes(from, whole, identities), drivers.probes()...)...)
		})
	})

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

func probes(from origin, whole *catalog.Catalog, identities *identities) []health.Probes {
	return append([]health.Probes{
		closed("objects of the mesh", from.read()),
		closed("snapshot of the mesh", whole.Ready()),
		closed("certificates of the mesh", identities.manager.Ready()),
	}, from.api().probes...)
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
