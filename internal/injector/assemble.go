package injector

import (
	"context"
	"encoding/json"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Assembly holds the parts that differ between the injectors of the webhook, the offline
// commands, the controller's audit and a mesh without a cluster.
type Assembly struct {
	Mesh   meshconfig.Mesh
	Config *source.Live
	// Namespace returns a namespace by its name. An error denies the pod.
	Namespace func(ctx context.Context, name string) (*inject.Namespace, error)
	// NativeSidecars reports whether the cluster runs native sidecars.
	NativeSidecars func(ctx context.Context) (bool, error)
	// PodCertificates is as in inject.Options.
	PodCertificates func(ctx context.Context) error
	// Client is for drivers that query the cluster; nil without one.
	Client kubernetes.Interface
	Log    *slog.Logger
}

// New returns the injector of an Assembly. It denies every pod until Use has been called with
// an injection config.
func New(a Assembly) *inject.Injector {
	return inject.New(inject.Options{
		MeshName: a.Mesh.Name, MeshNamespace: a.Mesh.Namespace, Revision: a.Mesh.Revision,
		Namespace:       a.Namespace,
		Configurator:    func() driver.Configurator { return a.Config.Current() },
		NativeSidecars:  a.NativeSidecars,
		PodCertificates: a.PodCertificates,
		KubeClient:      a.Client,
		InitImage:       meshconfig.InitImage(),
		Log:             a.Log,
	}, nil)
}

// Mapper returns the options by which this program's commands and controllers read the objects
// of a mesh.
func Mapper(meshName string, resolver *source.Resolver) source.MapperOptions {
	return source.MapperOptions{MeshName: meshName, Resolver: resolver, SidecarClass: inject.ClassOf}
}

// Namespaces returns a function for Assembly that finds the namespaces of a cluster.
func Namespaces(s *kube.Source) func(context.Context, string) (*inject.Namespace, error) {
	return func(ctx context.Context, name string) (*inject.Namespace, error) {
		ns, err := s.Namespace(ctx, name)
		if err != nil {
			return nil, err
		}
		return inject.NamespaceOf(ns), nil
	}
}

// PodCertificates returns a function for Assembly that asks a cluster.
func PodCertificates(s *kube.Source, meshName string) func(context.Context) error {
	return func(ctx context.Context) error { return s.PodCertificates(ctx, inject.TrustBundleName(meshName)) }
}

// Decide returns the sidecar that the injector would give to a pod, and a Problem
// if it would refuse the pod.
func Decide(ctx context.Context, engine *inject.Injector, pod *corev1.Pod) (dir.Sidecar, *mesh.Problem) {
	var result inject.Result
	raw, err := json.Marshal(pod)
	if err == nil {
		result = engine.Inject(ctx, inject.Request{Namespace: pod.Namespace, Pod: raw})
	}
	switch {
	case err == nil && result.Decision.Outcome == inject.Inject:
		return dir.Sidecar{Class: result.Class, Redirection: result.Redirection}, nil
	case err == nil && result.Decision.Outcome != inject.Deny:
		return dir.Sidecar{}, nil
	case err != nil:
		result.Decision.Message = err.Error()
	}
	return dir.Sidecar{}, &mesh.Problem{
		Object: mesh.ObjectRef{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		Reason: "Denied", Message: "the injector would refuse the pod: " + result.Decision.Message,
	}
}
