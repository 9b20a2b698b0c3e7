package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// kubeFlags select the cluster, as kubectl's flags of these names do.
type kubeFlags struct{ kubeconfig, context string }

func (f *kubeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; the default is $KUBECONFIG, ~/.kube/config, or the pod's service account")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig file")
}

// isSet reports whether a flag names a cluster.
func (f *kubeFlags) isSet() bool { return f.kubeconfig != "" || f.context != "" }

func (f *kubeFlags) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
}

// client returns a client of the cluster.
func (f *kubeFlags) client() (kubernetes.Interface, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	return client, nil
}

// namespace returns the namespace of the kubeconfig's context.
func (f *kubeFlags) namespace() (string, error) {
	namespace, _, err := f.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("finding the namespace: %w; give --namespace", err)
	}
	return namespace, nil
}

func (f *kubeFlags) config() (*rest.Config, error) {
	config, err := f.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w; give --kubeconfig", err)
	}
	config.UserAgent = "outrigger"
	return config, nil
}

// burstConfig returns the configuration for a command that sends many requests at once. It
// suppresses the API server's warnings, since such commands print their own findings.
func (f *kubeFlags) burstConfig() (*rest.Config, error) {
	config, err := f.config()
	if err != nil {
		return nil, err
	}
	// The defaults are for long-running programs.
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// meshFlags name the mesh and its objects.
type meshFlags meshconfig.Mesh

func (f *meshFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Name, "mesh-name", "osm", "name of the mesh, the value of the label "+metadata.MonitoredBy)
	flags.StringVar(&f.Namespace, "mesh-namespace", env("POD_NAMESPACE", "osm-system"), "namespace of the control plane")
	flags.StringVar(&f.Revision, "revision", "default", "revision of the injector; pods and namespaces choose one with the label "+metadata.Revision)
}

func (f *meshFlags) addConfig(flags *pflag.FlagSet) {
	flags.StringVar(&f.Config, "mesh-config", "osm-mesh-config", "name of the MeshConfig in the control plane's namespace")
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// cluster reads single objects of a cluster, for commands that answer once.
type cluster struct {
	client client.Client
	source *kube.Source
	mesh   meshFlags
}

func newCluster(flags kubeFlags, mesh meshFlags) (*cluster, error) {
	config, err := flags.config()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	s, err := kube.New(config, kube.Options{Namespace: mesh.Namespace, MeshConfigName: mesh.Config, Log: discard})
	if err != nil {
		return nil, err
	}
	return &cluster{client: c, source: s, mesh: mesh}, nil
}

// namespace returns what the injector's decision needs of a namespace.
func (c *cluster) namespace(ctx context.Context, name string) (*inject.Namespace, error) {
	return injector.Namespaces(c.source)(ctx, name)
}

// meshConfig returns the MeshConfig, or nil if there is none.
func (c *cluster) meshConfig(ctx context.Context) (*v1alpha2.MeshConfig, error) {
	var obj v1alpha2.MeshConfig
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.mesh.Namespace, Name: c.mesh.Config}, &obj)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("MeshConfig %s/%s: %w", c.mesh.Namespace, c.mesh.Config, err)
	}
	return &obj, nil
}

// injection returns the texts of the injection config and values. They are empty if there is
// no ConfigMap.
func (c *cluster) injection(ctx context.Context) (config, values string, err error) {
	var cm corev1.ConfigMap
	key := client.ObjectKey{Namespace: c.mesh.Namespace, Name: inject.ObjectName(c.mesh.Revision)}
	if err := client.IgnoreNotFound(c.client.Get(ctx, key, &cm)); err != nil {
		return "", "", fmt.Errorf("ConfigMap %s: %w", key, err)
	}
	return cm.Data[inject.ConfigKey], cm.Data[inject.ValuesKey], nil
}
