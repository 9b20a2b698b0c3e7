// Package injector wires the process that puts sidecars into pods: the objects of a cluster
// configure an inject.Injector, an admission webhook serves it, and a manager renews the
// webhook's certificate.
package injector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/internal/version"
)

// Options configure an injector. The flags of the same names describe them.
type Options struct {
	Mesh meshconfig.Mesh
	// Connect returns the configuration of the cluster's client. It is not called if there
	// are no templates.
	Connect func() (*rest.Config, error)
	// OnConfig is called with the first configuration of the mesh and with each changed
	// one. It must not block.
	OnConfig func(*source.Config)
	Log      *slog.Logger

	// Listen and HealthListen are TCP addresses.
	Listen, HealthListen string
	// ShutdownDelay is how long the injector keeps serving after the context has ended.
	ShutdownDelay time.Duration

	// TemplateDir and TemplateConfigMap are empty for none. Without both nothing is injected.
	TemplateDir, TemplateConfigMap string
	// WebhookConfig is the MutatingWebhookConfiguration whose caBundle is kept current, or empty.
	WebhookConfig string

	Certificate
}

// OptionError is Run's error for invalid options.
type OptionError struct{ Err error }

// Error returns the message of Err.
func (e OptionError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e OptionError) Unwrap() error { return e.Err }

// Run serves until ctx ends, and then for the ShutdownDelay. It changes the garbage
// collector's settings, so a process runs one injector.
func Run(ctx context.Context, o Options) error {
	limit.Memory(inject.GCPercent)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.TemplateDir == "" && o.TemplateConfigMap == "" {
		o.Log.Info("neither a template directory nor a template ConfigMap is configured, so no injector runs")
		return o.serveHealth(ctx, registry, func(context.Context) error { return nil })
	}

	ctrllog.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	config, err := o.Connect()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	facts, err := kube.New(config, kube.Options{Namespace: o.Mesh.Namespace, MeshConfigName: o.Mesh.Config, Log: o.Log})
	if err != nil {
		return err
	}
	live := meshconfig.Follow(facts, meshconfig.NewInjectionResolver())
	live.OnChange(o.OnConfig)
	injector := New(Assembly{
		Mesh: o.Mesh, Config: live, Namespace: Namespaces(facts), NativeSidecars: facts.NativeSidecars, PodCertificates: PodCertificates(facts, o.Mesh.Name), Client: client, Log: o.Log,
	})
	metrics := inject.NewMetrics(registry)
	reloader := inject.NewReloader(injector, o.TemplateDir, metrics, o.Log)
	if o.TemplateConfigMap != "" {
		facts.OnConfigMap(o.TemplateConfigMap, reloader.ConfigMap)
	}
	certificate, err := o.newManager(client, registry)
	if err != nil {
		return err
	}
	webhook := inject.NewWebhook(injector, metrics, o.Log)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return facts.Start(ctx) })
	group.Go(func() error {
		// MeshConfig and ConfigMap may disable injection, so nothing is injected
		// before they have been read.
		if facts.WaitForSync(ctx) != nil {
			return nil
		}
		return reloader.Run(ctx)
	})
	group.Go(func() error { certificate.Run(ctx); return nil })
	group.Go(func() error { return o.serveWebhook(ctx, webhook, certificate.TLSConfig()) })
	group.Go(func() error { return o.serveHealth(ctx, registry, certificate.Ready) })
	return group.Wait()
}

func (o *Options) serveWebhook(ctx context.Context, webhook *inject.Webhook, tlsConfig *tls.Config) error {
	mux := http.NewServeMux()
	webhook.Mount(mux)
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listening for admission reviews: %w", err)
	}
	server := limit.NewServer(mux, inject.Bounds, o.Log)
	server.HTTP.TLSConfig = tlsConfig
	return server.Run(ctx, listener, o.ShutdownDelay)
}

func (o *Options) serveHealth(ctx context.Context, registry *prometheus.Registry, ready func(context.Context) error) error {
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
	listener, err := net.Listen("tcp", o.HealthListen)
	if err != nil {
		return fmt.Errorf("listening for health checks: %w", err)
	}
	return limit.NewServer(mux, limit.Bounds{}, o.Log).Run(ctx, listener, o.ShutdownDelay)
}
