package inject

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// Metrics are the injector's metrics. They are safe for concurrent use.
type Metrics struct {
	requests *prometheus.CounterVec
	duration prometheus.Histogram
	refused  *prometheus.CounterVec
	reloads  *prometheus.CounterVec
	loaded   prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.InjectorDecisions,
			Help: "Pods decided about, by outcome, coded reason and sidecar class.",
		}, []string{metric.LabelOutcome, metric.LabelReason, metric.LabelClass}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    metric.InjectorDuration,
			Help:    "Time to answer one admission review.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 5, 10},
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.InjectorBadRequests,
			Help: "Requests that were no admission review, by HTTP status code.",
		}, []string{metric.LabelCode}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.InjectorConfigReloads,
			Help: "Changes of the injection config and values, by result: success or failure.",
		}, []string{metric.LabelResult}),
		loaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: metric.InjectorConfigLoaded,
			Help: "1 if the newest injection config and values are in use, 0 if older ones had to be kept.",
		}),
	}
	registry.MustRegister(m.requests, m.duration, m.refused, m.reloads, m.loaded)
	return m
}

func (m *Metrics) decided(r *Result, took time.Duration) {
	m.requests.WithLabelValues(string(r.Decision.Outcome), string(r.Decision.Reason), r.Class).Inc()
	m.duration.Observe(took.Seconds())
}

func (m *Metrics) reloaded(err error) {
	if err != nil {
		m.reloads.WithLabelValues(metric.ResultFailure).Inc()
		m.loaded.Set(0)
		return
	}
	m.reloads.WithLabelValues(metric.ResultSuccess).Inc()
	m.loaded.Set(1)
}
