package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/controller"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
)

// The origins of a mesh's objects.
const (
	sourceKube = "kube"
	sourceDir  = "dir"
)

// controllerFlags are the flags of 'outrigger controller'.
type controllerFlags struct {
	kube kubeFlags
	mesh meshFlags
	log  logFlags

	source            string
	files             []string
	caDir             string
	templateConfigMap string
	policies          string
	makePolicies      bool
	controller.Options
}

func newControllerCommand() *cobra.Command {
	var f controllerFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Serve configuration and certificates to the proxies of a mesh",
		Long: `Serve configuration and certificates to the proxies of a mesh.

The controller reads the objects of the mesh. The driver of each sidecar class translates
them into configuration and serves it to the proxies of that class: Envoy on port 15128,
Pipy on 6060, HAProxy on 6061, gRPC without a proxy on 15130, unless sidecarDrivers in the
MeshConfig has other ports. On port 15129 the controller signs the certificates of
workloads, each for the service account in the pod's token. Several replicas may run, and
all of them serve proxies.

The controller reports what is wrong: values that cannot be used, references to objects
that do not exist, objects that contradict each other, fields without effect, configuration
that a proxy rejects, and pods that should have a sidecar and have none. With --source kube,
it writes the reports to the status of the objects, to Warning Events and to metrics. If
there are several replicas, only the leader writes them.

With --source dir, the controller reads the mesh from manifests, without an API server, and
reads them again when they change. It logs what is wrong. It signs certificates with a CA in
the folder --ca-dir, and accepts tokens that were signed with the key in that folder. The
file bundle.crt in it is the trust bundle.

'outrigger proxy' needs the RBAC right to get /debug/proxy. If enableDebugServer is set
under observability in the MeshConfig, port 9092 serves more debug pages, to anyone who can
connect to it.`,
		Example: `  # In a pod.
  outrigger controller --mesh-name osm --mesh-namespace osm-system

  # On a workstation, as the only controller.
  outrigger controller --kubeconfig ~/.kube/config --leader-elect=false

  # A mesh without a cluster.
  outrigger controller --source dir -f manifests --ca-dir ca --bind-address 192.0.2.1`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("template-configmap") {
				f.templateConfigMap = inject.ObjectName(f.mesh.Revision)
			}
			if err := f.check(); err != nil {
				return err
			}
			log, err := f.log.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), log)
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	f.mesh.add(flags)
	f.mesh.addConfig(flags)
	f.log.add(flags)
	flags.StringVar(&f.source, "source", sourceKube, "where to read the mesh: kube for a cluster, dir for manifests")
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "dir: file or folder of manifests (*.yaml, *.yml, *.json at any depth); may be given several times")
	flags.StringVar(&f.caDir, "ca-dir", "", "dir: folder with the CA and the key for tokens, which are created if they are missing (default outrigger/ca in the user's configuration folder)")
	flags.StringVar(&f.BindAddress, "bind-address", "", "IP address to listen on; empty for all")
	flags.StringVar(&f.HealthListen, "health-listen", ":9091", "address of /health/alive, /health/ready and /metrics")
	flags.StringVar(&f.IdentityListen, "identity-listen", ":15129", "address of the service that signs certificates")
	flags.StringVar(&f.DebugListen, "debug-listen", ":9092", "address of the debug pages, if the MeshConfig enables them")
	flags.StringVar(&f.ProxyListen, "proxy-listen", fmt.Sprintf("127.0.0.1:%d", proxyPort), "kube: address for the requests of 'outrigger proxy', which come through a forwarded port and need a valid token")
	flags.StringVar(&f.CASecret, "ca-secret", root.DefaultSecret, "Secret with the mesh's own CA, which the controller creates in it if it is empty; with --source dir, a folder in --ca-dir. MeshRootCertificates may name others")
	flags.DurationVar(&f.RootPropagation, "root-propagation", root.DefaultPropagation, "how long a new root is trusted before it signs, so that all pods know it by then")
	flags.StringVar(&f.ClusterDomain, "cluster-domain", "cluster.local", "DNS domain of the cluster")
	flags.StringVar(&f.templateConfigMap, "template-configmap", "", "kube: the injector's ConfigMap, whose policy says which pods should have a sidecar; empty for none (default outrigger-injector, or outrigger-injector-REVISION)")
	flags.StringVar(&f.policies, "injection-policies", string(policy.ModeWebhook), "kube: make admission policies that inject sidecars: policy, if there is no injector; both, beside one; webhook for none. They need Kubernetes 1.36")
	flags.BoolVar(&f.makePolicies, "make-policies", true, "kube: make the policies of --injection-policies, instead of leaving that to whoever applies the output of 'outrigger manifests --admission-policy'")
	flags.DurationVar(&f.Catalog.HoldOff, "hold-off", catalog.DefaultHoldOff, "how long no object may change before the collected changes are processed; a fifth of it if nothing was processed within --max-hold-off")
	flags.DurationVar(&f.Catalog.MaxHoldOff, "max-hold-off", catalog.DefaultMaxHoldOff, "how long a change waits at most until it is processed")
	flags.IntVar(&f.UpgradeProxies, "upgrade-proxies", 0, "kube: how many running pods get another version of their proxy at a time, without a restart, when its image has changed; 0 for none")
	flags.StringSliceVar(&f.GatewayCertificates, "gateway-certificates", nil, "kube: namespaces whose Secrets of the type kubernetes.io/tls Gateways may present as certificates; * means all")
	flags.StringSliceVar(&f.Gateways, "gateways", nil, "kube: classes of proxies, such as envoy,haproxy, for which to make a GatewayClass, and the Deployments and Services of Gateways of these; without them, users make the pods of Gateways")
	flags.BoolVar(&f.LeaderElect, "leader-elect", true, "kube: elect one replica as the leader, which alone writes to the API server")
	return cmd
}

// check returns an error for flags that contradict each other, and sets defaults.
func (f *controllerFlags) check() error {
	if f.BindAddress != "" {
		if _, err := netip.ParseAddr(f.BindAddress); err != nil {
			return usage.Errorf("--bind-address %q: give an IP address", f.BindAddress)
		}
	}
	switch f.source {
	case sourceKube:
		if mode := policy.Mode(f.policies); mode != policy.ModeWebhook && mode != policy.ModePolicy && mode != policy.ModeBoth {
			return usage.Errorf("--injection-policies %q: it must be webhook, policy or both", f.policies)
		}
		if len(f.files) > 0 || f.caDir != "" {
			return usage.Errorf("-f and --ca-dir require --source dir")
		}
		return nil
	case sourceDir:
		if len(f.files) == 0 {
			return usage.Errorf("--source dir: name a file or a folder of manifests with -f")
		}
	default:
		return usage.Errorf("--source %q: sources are kube and dir", f.source)
	}
	if f.caDir == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return usage.Errorf("%v; name a folder for the CA with --ca-dir", err)
		}
		f.caDir = filepath.Join(config, "outrigger", "ca")
	}
	return nil
}

// run runs the controller until ctx ends.
func (f *controllerFlags) run(ctx context.Context, log *slog.Logger) error {
	o := f.Options
	o.Mesh, o.OnConfig, o.Log = meshconfig.Mesh(f.mesh), f.log.follow, log
	if f.source == sourceDir {
		o.Folder = &controller.Folder{Files: f.files, CADir: f.caDir}
		// Only an API server can authorize the users.
		o.ProxyListen = ""
	} else {
		mode := policy.ModeWebhook
		if f.makePolicies {
			mode = policy.Mode(f.policies)
		}
		o.Cluster = &controller.Cluster{Connect: f.kube.config, TemplateConfigMap: f.templateConfigMap, InjectionPolicies: mode}
	}
	return controller.Run(ctx, o)
}
