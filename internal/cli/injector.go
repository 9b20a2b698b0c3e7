package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/servingcert"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

// injectorFlags are those of 'outrigger injector'.
type injectorFlags struct {
	kube kubeFlags
	mesh meshFlags
	log  logFlags

	listen, healthListen string
	shutdownDelay        time.Duration

	templateDir, templateConfigMap, webhookConfig string

	certificate, certificateSecret, caSecret, certDir, caFile string
	csrSigner                                                 string
	csrApprove                                                bool
	service, clusterDomain                                    string
	extraNames                                                []string
}

// The sources of the serving certificate.
const (
	certOwnCA  = "own-ca"
	certSecret = "secret"
	certFiles  = "files"
	certCSR    = "csr"
)

func newInjectorCommand() *cobra.Command {
	var f injectorFlags
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
			// The names follow the revision, so that two revisions share nothing.
			name := inject.ObjectName(f.mesh.revision)
			for flag, value := range map[string]struct {
				into *string
				name string
			}{
				"template-configmap": {&f.templateConfigMap, name},
				"webhook-config":     {&f.webhookConfig, name},
				"service":            {&f.service, name},
				"ca-secret":          {&f.caSecret, name + "-ca"},
				"certificate-secret": {&f.certificateSecret, name + "-tls"},
			} {
				if !cmd.Flags().Changed(flag) {
					*value.into = value.name
				}
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
	flags.StringVar(&f.listen, "listen", ":9090", "address of the webhook")
	flags.StringVar(&f.healthListen, "health-listen", ":9091", "address of /health/alive, /health/ready and /metrics")
	flags.DurationVar(&f.shutdownDelay, "shutdown-delay", 5*time.Second, "how long to go on serving after being told to stop, while the API server notices")
	f.log.add(flags)
	flags.StringVar(&f.templateDir, "template-dir", "/var/lib/outrigger/inject", "directory with the files config and values; empty for none")
	flags.StringVar(&f.templateConfigMap, "template-configmap", "", "ConfigMap with the keys config and values; empty for none (default NAME)")
	flags.StringVar(&f.webhookConfig, "webhook-config", "", "MutatingWebhookConfiguration whose caBundle is kept right; empty to leave it to others (default NAME)")
	flags.StringVar(&f.certificate, "certificate", certOwnCA, "source of the serving certificate: own-ca, secret, files or csr")
	flags.StringVar(&f.caSecret, "ca-secret", "", "own-ca: Secret with the CA, which is filled if it is empty (default NAME-ca)")
	flags.StringVar(&f.certificateSecret, "certificate-secret", "", "secret: Secret with tls.crt, tls.key and ca.crt, as cert-manager makes it (default NAME-tls)")
	flags.StringVar(&f.certDir, "cert-dir", "/etc/outrigger/certs", "files: directory with tls.crt, tls.key and ca.crt")
	flags.StringVar(&f.csrSigner, "csr-signer", "", "csr: signer of certificates.k8s.io to ask")
	flags.BoolVar(&f.csrApprove, "csr-approve", false, "csr: approve the own request too")
	flags.StringVar(&f.caFile, "ca-file", "", "csr: PEM file with the signer's CAs; the default is the ConfigMap kube-root-ca.crt")
	flags.StringVar(&f.service, "service", "", "name of the webhook's Service (default NAME)")
	flags.StringVar(&f.clusterDomain, "cluster-domain", "cluster.local", "DNS domain of the cluster")
	flags.StringSliceVar(&f.extraNames, "extra-names", nil, "further DNS names and addresses for the certificate, for a webhook that is called by URL")
	return cmd
}

// run wires the injector: objects of the cluster to an Injector, the Injector to
// a webhook, and beside it the webhook's certificate.
func (f *injectorFlags) run(ctx context.Context, log *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(inject.GCPercent)
	}
	limitMemory()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if f.templateDir == "" && f.templateConfigMap == "" {
		log.Info("there is neither a template directory nor a template ConfigMap, so there is no injector")
		return f.serveHealth(ctx, registry, log, func(context.Context) error { return nil })
	}

	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	config, err := f.kube.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of %s: %w", config.Host, err)
	}
	facts, err := kube.New(config, kube.Options{Namespace: f.mesh.namespace, MeshConfigName: f.mesh.config, Log: log})
	if err != nil {
		return err
	}
	injector := newLiveInjector(facts, client, f.mesh, &f.log, log)
	metrics := inject.NewMetrics(registry)
	reloader := inject.NewReloader(injector, f.templateDir, metrics, log)
	if f.templateConfigMap != "" {
		facts.OnConfigMap(f.templateConfigMap, reloader.ConfigMap)
	}

	manager, err := f.newManager(client, registry, log)
	if err != nil {
		return err
	}
	webhook := inject.NewWebhook(injector, metrics, log)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return facts.Start(ctx) })
	group.Go(func() error {
		// MeshConfig and ConfigMap may say that nothing is to be injected, so
		// nothing is before they have been read.
		if facts.WaitForSync(ctx) != nil {
			return nil
		}
		return reloader.Run(ctx)
	})
	group.Go(func() error { manager.Run(ctx); return nil })
	group.Go(func() error { return f.serveWebhook(ctx, webhook, manager.TLSConfig(), log) })
	group.Go(func() error { return f.serveHealth(ctx, registry, log, manager.Ready) })
	return group.Wait()
}

func (f *injectorFlags) newManager(client kubernetes.Interface, registry prometheus.Registerer, log *slog.Logger) (*servingcert.Manager, error) {
	names := servingcert.Names{Service: f.service, Namespace: f.mesh.namespace, ClusterDomain: f.clusterDomain, Extra: f.extraNames}
	var (
		issuer servingcert.Issuer
		err    error
	)
	switch f.certificate {
	case certOwnCA:
		issuer, err = servingcert.NewOwnCA(servingcert.OwnCAOptions{Client: client, Namespace: f.mesh.namespace, Name: f.caSecret, Names: names})
	case certSecret:
		issuer = servingcert.NewSecretIssuer(client, f.mesh.namespace, f.certificateSecret)
	case certFiles:
		issuer = servingcert.NewFileIssuer(servingcert.Files{
			Certificate: filepath.Join(f.certDir, "tls.crt"), Key: filepath.Join(f.certDir, "tls.key"), CA: filepath.Join(f.certDir, "ca.crt"),
		})
	case certCSR:
		issuer, err = servingcert.NewCSRIssuer(servingcert.CSROptions{
			Client: client, Names: names, SignerName: f.csrSigner, Approve: f.csrApprove, CAFile: f.caFile, Logger: log,
		})
	default:
		err = fmt.Errorf("--certificate %q: sources are own-ca, secret, files and csr", f.certificate)
	}
	if err != nil {
		return nil, usage.Error{Err: err}
	}
	host, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil, usage.Errorf("--listen %q: %v", f.listen, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return servingcert.New(issuer, servingcert.Options{
		ServerName:           names.ServerName(),
		WebhookConfiguration: f.webhookConfig,
		Client:               client,
		SelfCheck: servingcert.SelfCheck{
			Address: net.JoinHostPort(host, port), Review: f.sampleReview(), Accept: acceptReview,
		},
		Registerer: registry,
		Logger:     log,
	})
}

// sampleReview is what the injector asks itself. The pod is in a namespace that
// is never injected, so the answer shows that decisions are made and no more.
func (f *injectorFlags) sampleReview() []byte {
	review, err := json.Marshal(map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": map[string]any{
			"uid": inject.SelfCheckUID, "operation": "CREATE", "dryRun": true, "namespace": f.mesh.namespace,
			"kind":   map[string]any{"version": "v1", "kind": "Pod"},
			"object": map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "self-check"}},
		},
	})
	if err != nil {
		panic(err) // It holds nothing but strings.
	}
	return review
}

func acceptReview(answer []byte) error {
	var review struct {
		Response *struct {
			Allowed bool
			Status  struct{ Message string }
		}
	}
	if err := json.Unmarshal(answer, &review); err != nil {
		return fmt.Errorf("the webhook's answer to itself is no admission review: %w", err)
	}
	if review.Response == nil || !review.Response.Allowed {
		message := "no response"
		if review.Response != nil {
			message = review.Response.Status.Message
		}
		return errors.New("the webhook denies its own review: " + message)
	}
	return nil
}

func (f *injectorFlags) serveWebhook(ctx context.Context, webhook *inject.Webhook, tlsConfig *tls.Config, log *slog.Logger) error {
	mux := http.NewServeMux()
	webhook.Mount(mux)
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("listening for admission reviews: %w", err)
	}
	server := limit.NewServer(mux, inject.Bounds, log)
	server.HTTP.TLSConfig = tlsConfig
	return serve(ctx, server, f.shutdownDelay, listener)
}

func (f *injectorFlags) serveHealth(ctx context.Context, registry *prometheus.Registry, log *slog.Logger, ready func(context.Context) error) error {
	mux := http.NewServeMux()
	mux.Handle("/version", version.Handler())
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/health/alive", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/health/ready", func(w http.ResponseWriter, r *http.Request) {
		err := ready(r.Context())
		if ctx.Err() != nil {
			err = errors.New("the injector is stopping")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	listener, err := net.Listen("tcp", f.healthListen)
	if err != nil {
		return fmt.Errorf("listening for health checks: %w", err)
	}
	return serve(ctx, limit.NewServer(mux, limit.Bounds{}, log), f.shutdownDelay, listener)
}

// serve runs a server until ctx ends, then goes on for the delay and lets
// requests under way finish.
func serve(ctx context.Context, server *limit.Server, delay time.Duration, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	time.Sleep(delay)
	stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return server.HTTP.Shutdown(stop)
}
