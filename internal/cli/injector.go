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

It answers POST /inject (and /mutate-pod-creation, as Open Service Mesh did) over
HTTPS, and keeps its certificate and the caBundle of its webhook configuration
right. It is ready when a TLS call to its own /inject works.

Templates come from the files "config" and "values" of a directory while they
are there, else from the keys of the same names of a ConfigMap, else from the
drivers alone. Changes are taken up at once. With neither a directory nor a
ConfigMap (--template-dir="" --template-configmap="") there is no injector at all.

NAME, in the defaults below, is outrigger-injector for the revision default, and
outrigger-injector-REVISION for any other.`,
		Example: `  # In a pod, with a CA of its own in the Secret outrigger-injector-ca.
  outrigger injector --mesh-name osm --mesh-namespace osm-system

  # With cert-manager's Secret, and without any right on webhook configurations.
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
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay", 5*time.Second, "how long to keep serving after the signal to stop, while the API server notices")
	logs.add(flags)
	flags.StringVar(&o.TemplateDir, "template-dir", "/var/lib/outrigger/inject", "directory with the files config and values; empty for none")
	flags.StringVar(&o.TemplateConfigMap, "template-configmap", "", "ConfigMap with the keys config and values; empty for none (default NAME)")
	flags.StringVar(&o.WebhookConfig, "webhook-config", "", "MutatingWebhookConfiguration whose caBundle is kept right; empty to leave it to others (default NAME)")
	flags.StringVar(&o.Source, "certificate", injector.OwnCA, "source of the serving certificate: own-ca, secret, files or csr")
	flags.StringVar(&o.CASecret, "ca-secret", "", "own-ca: Secret with the CA, which is filled if it is empty (default NAME-ca)")
	flags.StringVar(&o.CertificateSecret, "certificate-secret", "", "secret: Secret with tls.crt, tls.key and ca.crt, as cert-manager makes it (default NAME-tls)")
	flags.StringVar(&o.CertDir, "cert-dir", "/etc/outrigger/certs", "files: directory with tls.crt, tls.key and ca.crt")
	flags.StringVar(&o.CSRSigner, "csr-signer", "", "csr: signer of certificates.k8s.io to ask")
	flags.BoolVar(&o.CSRApprove, "csr-approve", false, "csr: approve the own request too")
	flags.StringVar(&o.CAFile, "ca-file", "", "csr: PEM file with the signer's CAs; the default is the ConfigMap kube-root-ca.crt")
	flags.StringVar(&o.Service, "service", "", "name of the webhook's Service (default NAME)")
	flags.StringVar(&o.ClusterDomain, "cluster-domain", "cluster.local", "DNS domain of the cluster")
	flags.StringSliceVar(&o.ExtraNames, "extra-names", nil, "further DNS names and addresses for the certificate, for a webhook that is called by URL")
	return cmd
}
