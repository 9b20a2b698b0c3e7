// Package controller wires the process that serves the proxies of a mesh: objects become
// facts, facts a Snapshot with a View for each proxy, and drivers serve what they make of the
// Views. The package decides nothing itself.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/ondemand"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/scrape"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options configure a controller. Either Cluster or Folder is set. Fields without a comment
// are flags of 'outrigger controller', whose help describes them.
type Options struct {
	Mesh    meshconfig.Mesh
	Cluster *Cluster
	Folder  *Folder
	// OnConfig is called with the mesh's configuration, initially and after each change. It
	// must not block.
	OnConfig func(*source.Config)
	Log      *slog.Logger

	// BindAddress is an IP address, or empty. It is the host of those of the other addresses
	// that have only a port. If ProxyListen is empty, that page is not served.
	BindAddress                                            string
	HealthListen, IdentityListen, DebugListen, ProxyListen string

	// CASecret is the name of the Secret with the mesh's own CA, and RootPropagation how long
	// a new root is trusted before it signs. Zero values mean the defaults of package root.
	CASecret        string
	RootPropagation time.Duration
	// ClusterDomain is the suffix of the DNS names of services.
	ClusterDomain string
	// LeaderElect elects a leader among the replicas. Only the leader writes to the cluster.
	LeaderElect bool
	// UpgradeProxies is how many running pods get a new version of their proxy at a time. 0 means
	// that pods keep the version with which they started.
	UpgradeProxies int
	// Gateways are the classes of proxies for which a GatewayClass is made. If there are any, the
	// pods and Services of the mesh's Gateways are made.
	Gateways []string
	// GatewayCertificates are the namespaces whose Secrets with certificates are read for Gateways; "*"
	// means all.
	GatewayCertificates []string
	// Catalog has the hold-off times of changes. Run sets its other fields.
	Catalog catalog.Options
}

// Cluster describes a mesh whose objects are in an API server.
type Cluster struct {
	// Connect returns the client configuration.
	Connect func() (*rest.Config, error)
	// TemplateConfigMap is the name of the injector's ConfigMap, empty if there is none. The
	// audit decides with it whether a pod should have a sidecar.
	TemplateConfigMap string
	// InjectionPolicies says which admission policies to make; policy.ModeWebhook or empty for
	// none.
	InjectionPolicies policy.Mode
}

// Folder describes a mesh whose objects are in manifests.
type Folder struct {
	// Files are files and folders of manifests.
	Files []string
	// CADir is the folder of the CA and of the key for tokens.
	CADir string
}

// gcPercent is GOGC. Most of the heap is the mesh, which lives long, and changes of it allocate
// little. What all proxies need at once when they connect would else double it.
const gcPercent = 50

// Run reads a mesh and serves its proxies until ctx ends, and then returns nil. If it returns
// an error, it has also recorded it as an Event in the cluster. It changes the garbage collector's
// settings.
func Run(ctx context.Context, o Options) error {
	limit.Memory(gcPercent)
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
		return errors.Join(err, fmt.Errorf("no Event was recorded for it: %w", lost))
	}
	return err
}

func (o *Options) open(metrics prometheus.Registerer) (origin, error) {
	if o.Folder != nil {
		return newFolder(*o.Folder, o)
	}
	return newCluster(*o.Cluster, o, metrics)
}

// serve follows the data flow from top to bottom. Each stage reads what earlier stages
// publish.
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

	// Objects become facts, and facts a Snapshot with a View for each proxy.
	options := o.Catalog
	options.Log, options.Find, options.Trusts, options.Fetches = o.Log, from.find(), true, true
	options.Features, options.Proxyless = sidecar.Features, sidecar.IsProxyless
	cat := catalog.New(options)
	learned, err := from.learned(cat)
	if err != nil {
		return fail(err)
	}
	run(func(ctx context.Context) error { return from.feed(ctx, cat) })
	run(always(cat.Run))

	// The registry records connected proxies and what they reject.
	proxies := registry.New(registry.Options{
		KeyExchange: sidecar.KeyExchange,
		Limit:       from.settings().GetMaxDataPlaneConnections, Report: cat.Report, Registerer: metrics,
	})
	run(always(proxies.Run))

	// The signing service issues certificates to the controller and to pods. The catalog
	// passes the trusted roots on to the proxies.
	identities, err := o.newIdentities(from, failures{from, proxies, o.Log}.take, learn(ondemand.NewLearner(cat, learned)), metrics)
	if err != nil {
		return fail(err)
	}
	run(identities.run)
	run(func(ctx context.Context) error { return identities.follow(ctx, cat.Trust) })
	run(func(ctx context.Context) error { return identities.service.Serve(ctx, listeners.identity) })

	// Drivers translate Views and serve the result to their proxies. They subscribe to changed
	// Views with MsgBroker, and read them from MeshCatalog.
	pages := debug.NewServer(o.address(o.DebugListen), o.Log)
	shown := debug.Sources{
		Catalog: cat, Config: from.settings(), Proxies: proxies.Proxies, Problems: func() []mesh.Problem { return append(from.problems(), identities.roots.Problems()...) },
		Certificates: func() any { return identities.manager.Certificates() },
		Traffic:      scrape.NewReader(cat.Snapshot).Traffic,
	}
	drivers := newDrivers(driver.ControllerContext{
		OsmNamespace: o.Mesh.Namespace,
		KubeConfig:   from.api().config,
		Configurator: from.settings(),
		MeshCatalog:  meshCatalog{cat},
		CertManager:  identities.manager,
		MsgBroker:    cat,
		BindAddress:  o.BindAddress,
		Proxies:      proxies,
		Log:          o.Log,

		ServerCertificates: from.serverCertificates(),
	}, from, identities.names, end)
	drivers.show = func(sets ...map[string]http.Handler) error {
		all, err := debug.Merge(append(sets, debug.Pages(shown), dashboardPages(shown, o.Log))...)
		if err == nil {
			pages.Show(all)
		}
		return err
	}
	if err := drivers.show(); err != nil {
		return fail(err)
	}
	run(func(ctx context.Context) error { return drivers.run(ctx, cat) })

	// Reports: conditions, Events, debug pages, metrics and health.
	run(func(ctx context.Context) error { return from.report(ctx, cat, identities) })
	from.settings().OnChange(func(c *source.Config) { pages.Switch(c.IsDebugServerEnabled()) })
	run(always(pages.Run))
	run(func(ctx context.Context) error {
		return serveProxies(ctx, listeners.proxies, shown, from.api().review, o.Log)
	})
	run(func(ctx context.Context) error {
		return serveProbes(ctx, listeners.health, metrics, o.Log, func() health.Probes {
			return health.Join("outrigger-controller", append(probes(from, cat, identities), drivers.probes()...)...)
		})
	})

	err = group.Wait()
	if cause := context.Cause(ended); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// learn adapts a Learner to the signing service.
func learn(with *ondemand.Learner) func(context.Context, identity.Workload, netip.AddrPort) (bool, error) {
	return func(ctx context.Context, w identity.Workload, at netip.AddrPort) (bool, error) {
		return with.Learn(ctx, fact.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}, w.PodUID, at)
	}
}

// always adapts stages that never fail.
func always(run func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// meshCatalog adapts a catalog to the contract of drivers.
type meshCatalog struct{ *catalog.Catalog }

var _ driver.MeshCataloger = meshCatalog{}

// AwaitView implements driver.MeshCataloger.
func (c meshCatalog) AwaitView(ctx context.Context, peer driver.Peer) (*mesh.View, error) {
	view, err := c.Catalog.AwaitView(ctx, peer.Identity, peer.ProxyUID)
	if errors.Is(err, catalog.ErrNoProxy) {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnknownProxy, err)
	}
	return view, err
}

func probes(from origin, cat *catalog.Catalog, identities *identities) []health.Probes {
	return append([]health.Probes{
		closed("objects of the mesh", from.read()),
		closed("snapshot of the mesh", cat.Ready()),
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
