package registry

import "github.com/prometheus/client_golang/prometheus"

// metrics are by class, except failing, which is by namespace.
type metrics struct {
	connected, refusing, failing                    *prometheus.GaugeVec
	refused, sent, acked, rejected, resources, size *prometheus.CounterVec
	seconds                                         *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	class := []string{"class"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, class)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, class)
	}
	m := &metrics{
		connected: gauge("outrigger_proxies_connected", "Proxies that are connected to this controller."),
		refusing:  gauge("outrigger_proxies_rejecting", "Connected proxies that refuse a part of their configuration."),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_proxies_failing", Help: "Proxies that do not stay up, as their agents report it to this controller.",
		}, []string{"namespace"}),
		refused:   counter("outrigger_proxies_refused_total", "Proxies that were turned away because too many are connected."),
		sent:      counter("outrigger_proxy_configs_sent_total", "Configurations and parts of them that proxies were sent."),
		acked:     counter("outrigger_proxy_configs_acked_total", "Configurations that proxies have taken."),
		rejected:  counter("outrigger_proxy_configs_rejected_total", "Configurations that proxies have refused."),
		resources: counter("outrigger_proxy_config_resources_total", "Resources in what proxies were sent."),
		size:      counter("outrigger_proxy_config_bytes_total", "Bytes of what proxies were sent."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "outrigger_proxy_config_seconds",
			Help:    "Time from a change in the mesh until a proxy runs the configuration that it led to.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, class),
	}
	registerer.MustRegister(m.failing, m.connected, m.refusing, m.refused, m.sent, m.acked, m.rejected, m.resources, m.size, m.seconds)
	return m
}

// count counts a configuration that was sent.
func (m *metrics) count(class string, resources, bytes int) {
	m.sent.WithLabelValues(class).Inc()
	m.resources.WithLabelValues(class).Add(float64(resources))
	m.size.WithLabelValues(class).Add(float64(bytes))
}
