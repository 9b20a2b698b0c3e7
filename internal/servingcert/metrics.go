package servingcert

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

type metrics struct {
	expiry   prometheus.Gauge
	renewals *prometheus.CounterVec
	patches  *prometheus.CounterVec
}

// newMetrics creates the metrics and registers them unless registerer is nil.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: metric.InjectorCertificateExpiry,
			Help: "When the injector's serving certificate or its CA expires, in seconds since 1970; 0 while there is none.",
		}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.InjectorCertificateRenewals,
			Help: "Serving certificates obtained (success) and failed attempts (error).",
		}, []string{metric.LabelResult}),
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.InjectorCABundlePatches,
			Help: "Patches of the caBundle in the MutatingWebhookConfiguration: written (success), overtaken by another change (conflict), refused (error), and times the configuration was found missing (missing).",
		}, []string{metric.LabelResult}),
	}
	for _, result := range []string{metric.ResultSuccess, metric.ResultError} {
		m.renewals.WithLabelValues(result)
	}
	for _, result := range []string{metric.ResultSuccess, metric.ResultConflict, metric.ResultError, metric.ResultMissing} {
		m.patches.WithLabelValues(result)
	}
	if registerer == nil {
		return m, nil
	}
	return m, errors.Join(registerer.Register(m.expiry), registerer.Register(m.renewals), registerer.Register(m.patches))
}
