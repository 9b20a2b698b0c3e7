package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
)

func newInjectorCommand() *cobra.Command {
	var (
		kube kubeFlags
		mesh meshFlags
		logs logFlags
		o    injector.Options
	)
	cmd := &cobra.Command{
		Use:   "injector",
		Short: "Run the admission webhook that puts sidecars into pods",
		Long: `Run the admission webhook that puts sidecars into pods.

The injector answers POST /inject over HTTPS (and /mutate-pod-creation, the path of Open
Service Mesh). It renews its certificate, and updates the caBundle of its webhook
configuration. It is ready when a TLS request to its own /inject succeeds.

It reads templates from the files "config" and "values" in a directory. If they do not
exist, it reads the keys of the same names in a ConfigMap. If that does not exist either,
it uses only the drivers' own templates. Changes take effect at once. With neither a
directory nor a ConfigMap (--template-dir="" --template-configmap=""), no injector runs.

In the defaults below, NAME is outrigger-injector for the revision default, and
outrigger-injector-REVISION for any other.`,
		Example: `  # In a pod, with a CA of its own in the Secret outrigger-injector-ca.
  outrigger injector --mesh-name osm --mesh-namespace osm-system

  # With cert-manager's Secret, and without the right to change webhook configurations.
  outrigger injector --certificate secret --certificate-secret injector-tls --webhook-config ""

  # A second version beside the first.
  outrigger injector --revision canary`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The defaults contain the revision, so that two revisions share no object.
			name := inject.ObjectName(mesh.Revision)
			for flag, value := range map[string]struct {
				into *string
				name string
			}{
				"template-configmap": {&o.TemplateConfigMap, name},
				"webhook-config":     {&o.WebhookConfig, name},
				"service":            {&o.Service, name},
				"ca-secret":          {&o.CASecret, name + "-ca"},
				"certificate-secret": {&o.CertificateSecret, name + "-tls"},
			} {
				if !cmd.Flags().Changed(flag) {
					*value.into = value.name
				}
			}
			log, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			o.Mesh = meshconfig.Mesh(mesh)
			o.Connect, o.OnConfig, o.Log = kube.config, logs.follow, log
			err = injector.Run(cmd.Context(), o)
			if wrong, ok := errors.AsType[injector.OptionError](err); ok {
				return usage.Error{Err: wrong}
			}
			return err
		},
	}
	flags := cmd.Flags()
	kube.add(flags)
	mesh.add(flags)
	mesh.addConfig(flags)
	flags.StringVar(&o.Listen, "listen", ":9090", "address of the webhook")
	flags.StringVar(&o.HealthListen, "health-listen", ":9091", "address of /health/alive, /health/ready and /metrics")
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay", 5*time.Second, "how long to keep serving after the signal to stop, so that the API server can notice")
	logs.add(flags)
	flags.StringVar(&o.TemplateDir, "template-dir", "/var/lib/outrigger/inject", "directory with the files config and values; empty for none")
	flags.StringVar(&o.TemplateConfigMap, "template-configmap", "", "ConfigMap with the keys config and values; empty for none (default NAME)")
	flags.StringVar(&o.WebhookConfig, "webhook-config", "", "MutatingWebhookConfiguration whose caBundle the injector updates; empty if something else does (default NAME)")
	flags.StringVar(&o.Source, "certificate", injector.OwnCA, "source of the serving certificate: own-ca, secret or files")
	flags.StringVar(&o.CASecret, "ca-secret", "", "own-ca: Secret with the CA, which the injector creates in it if it is empty (default NAME-ca)")
	flags.StringVar(&o.CertificateSecret, "certificate-secret", "", "secret: Secret with tls.crt, tls.key and ca.crt, as cert-manager creates it (default NAME-tls)")
	flags.StringVar(&o.CertDir, "cert-dir", "/etc/outrigger/certs", "files: directory with tls.crt, tls.key and ca.crt")
	flags.StringVar(&o.Service, "service", "", "name of the webhook's Service (default NAME)")
	flags.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "DNS domain of the cluster")
	flags.StringSliceVar(&o.ExtraNames, "extra-names", nil, "more DNS names and addresses for the certificate, if the webhook is called by URL")
	return cmd
}
