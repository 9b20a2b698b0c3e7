package injector

import (
	"context"
	"log/slog"

	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Assembly is what the injectors of a webhook, of offline commands, of the controller's audit
// and of a mesh without a cluster differ in.
type Assembly struct {
	Mesh   meshconfig.Mesh
	Config *source.Live
	// Namespace returns a namespace by its name. An error denies the pod.
	Namespace func(ctx context.Context, name string) (*inject.Namespace, error)
	// NativeSidecars reports whether the cluster runs native sidecars.
	NativeSidecars func(ctx context.Context) (bool, error)
	// Client is for drivers that ask the cluster; nil without one.
	Client kubernetes.Interface
	Log    *slog.Logger
}

// New returns the injector of an Assembly. It denies every pod until its Use is called with an
// injection config.
func New(a Assembly) *inject.Injector {
	return inject.New(inject.Options{
		MeshName: a.Mesh.Name, MeshNamespace: a.Mesh.Namespace, Revision: a.Mesh.Revision,
		Namespace:      a.Namespace,
		Configurator:   func() driver.Configurator { return a.Config.Current() },
		NativeSidecars: a.NativeSidecars,
		KubeClient:     a.Client,
		InitImage:      meshconfig.InitImage(),
		Log:            a.Log,
	}, nil)
}

// Namespaces returns a function for Assembly that finds the namespaces of a cluster.
func Namespaces(s *kube.Source) func(context.Context, string) (*inject.Namespace, error) {
	return func(ctx context.Context, name string) (*inject.Namespace, error) {
		ns, err := s.Namespace(ctx, name)
		if err != nil {
			return nil, err
		}
		return &inject.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}, nil
	}
}
