package controller

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// rootSources are the storage of the mesh's CAs, the objects that configure them, and the
// external issuers.
type rootSources struct {
	secrets   store.Secrets
	objects   root.Objects
	providers root.Providers
}

// identities are the parts that issue the mesh's certificates.
type identities struct {
	names   []string
	manager *identity.Manager
	service *identity.Service
	roots   *root.Roots
}

func (o *Options) newIdentities(from origin, report func(context.Context, identity.Workload, identity.ProxyReport),
	learn func(context.Context, identity.Workload, netip.AddrPort) (bool, error), metrics prometheus.Registerer,
) (*identities, error) {
	const service = "outrigger-controller"
	name := service + "." + o.Mesh.Namespace
	i := &identities{names: []string{name + ".svc", name + ".svc." + o.ClusterDomain, name}}
	var err error
	i.manager, err = identity.NewManager(identity.Options{
		DNSNames: i.names, TrustDomain: from.settings().GetTrustDomain, Life: from.settings().GetServiceCertValidityPeriod,
		Refresh:    func(ctx context.Context) error { return i.roots.Refresh(ctx) },
		Registerer: metrics, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	i.service, err = identity.NewService(identity.ServiceOptions{
		Manager: i.manager, Reviewer: from.reviewer(), Member: from.member, Report: report, Learn: learn, Registerer: metrics, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	i.roots, err = root.New(root.Options{
		Manager: i.manager, Secrets: from.roots().secrets, Objects: from.roots().objects, Namespace: o.Mesh.Namespace, Secret: o.CASecret,
		Providers: from.roots().providers, Propagation: o.RootPropagation,
		Life: from.settings().GetServiceCertValidityPeriod, TrustDomain: from.settings().GetTrustDomain, Registerer: metrics, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	from.settings().OnChange(func(*source.Config) { i.roots.Trigger() })
	return i, nil
}

// run renews certificates and roots until ctx ends.
func (i *identities) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { i.roots.Run(ctx) })
	if wait(ctx, i.roots.Ready()) {
		i.manager.Run(ctx)
	}
	return nil
}

// follow calls trust with the trust bundle, initially and after each change, until ctx ends.
func (i *identities) follow(ctx context.Context, trust func(bundle []byte)) error {
	changed := i.manager.TrustBundleChanged(ctx.Done())
	if !wait(ctx, i.manager.Ready()) {
		return nil
	}
	for {
		trust(i.manager.TrustBundle())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// newClusterRoots stores CAs in Secrets of the control plane's namespace.
func newClusterRoots(config *rest.Config, client kubernetes.Interface, o *Options) (rootSources, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return rootSources{}, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	return rootSources{
		secrets: store.NewKube(client, o.Mesh.Namespace, o.Log),
		objects: root.NewKubeObjects(objects, o.Mesh.Namespace, o.Log),
		providers: root.Providers{
			Vault: newVault,
			CertManager: func(spec v1alpha2.CertManagerProviderSpec) (issuer.Issuer, error) {
				return issuer.NewCertManager(issuer.CertManagerOptions{
					Client: objects, Namespace: o.Mesh.Namespace,
					IssuerName: spec.IssuerName, IssuerKind: spec.IssuerKind, IssuerGroup: spec.IssuerGroup, Log: o.Log,
				})
			},
		},
	}, nil
}

// newFolderRoots stores CAs in a folder.
func newFolderRoots(from Folder, objects root.Objects) (rootSources, error) {
	secrets, err := store.NewDir(from.CADir)
	if err != nil {
		return rootSources{}, fmt.Errorf("%w; choose another folder with --ca-dir", err)
	}
	return rootSources{secrets: secrets, objects: objects, providers: root.Providers{Vault: newVault}}, nil
}

func newVault(spec v1alpha2.VaultProviderSpec, token string) (issuer.Issuer, error) {
	address := url.URL{
		Scheme: cmp.Or(spec.Protocol, "https"),
		Host:   net.JoinHostPort(spec.Host, strconv.Itoa(int(cmp.Or(spec.Port, vaultPort)))),
	}
	return issuer.NewVault(issuer.VaultOptions{
		Address: address.String(), Role: spec.Role,
		// A new token means a new issuer.
		Token: func(context.Context) (string, error) { return token, nil },
	})
}

// vaultPort is Vault's own default.
const vaultPort = 8200
