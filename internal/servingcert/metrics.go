package servingcert

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "result".
const (
	resultSuccess  = "success"
	resultError    = "error"
	resultConflict = "conflict"
	resultMissing  = "missing"
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
			Name: "outrigger_injector_certificate_expiry_timestamp_seconds",
			Help: "When the injector's serving certificate or its CA expires, in seconds since 1970; 0 while there is none.",
		}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_injector_certificate_renewals_total",
			Help: "Serving certificates obtained (success) and failed attempts (error).",
		}, []string{"result"}),
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_injector_ca_bundle_patches_total",
			Help: "Patches of the caBundle in the MutatingWebhookConfiguration: written (success), overtaken by another change (conflict), refused (error), and times the configuration was found missing (missing).",
		}, []string{"result"}),
	}
	for _, result := range []string{resultSuccess, resultError} {
		m.renewals.WithLabelValues(result)
	}
	for _, result := range []string{resultSuccess, resultConflict, resultError, resultMissing} {
		m.patches.WithLabelValues(result)
	}
	if registerer == nil {
		return m, nil
	}
	return m, errors.Join(registerer.Register(m.expiry), registerer.Register(m.renewals), registerer.Register(m.patches))
}
