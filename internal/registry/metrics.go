package registry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// metrics are by class, except failing, which is by namespace.
type metrics struct {
	connected, refusing, failing                    *prometheus.GaugeVec
	refused, sent, acked, rejected, resources, size *prometheus.CounterVec
	seconds                                         *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer, behind func() map[string]int, versions, keyExchanges func() map[[2]string]int) *metrics {
	class := []string{metric.LabelClass}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, class)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, class)
	}
	m := &metrics{
		connected: gauge(metric.ProxiesConnected, "Proxies that are connected to this controller."),
		refusing:  gauge(metric.ProxiesRejecting, "Connected proxies that refuse a part of their configuration."),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metric.ProxiesFailing, Help: "Proxies that do not stay up, as their agents report it to this controller.",
		}, []string{metric.LabelNamespace}),
		refused:   counter(metric.ProxiesRefused, "Proxies that were turned away because too many are connected."),
		sent:      counter(metric.ConfigsSent, "Configurations and parts of them that proxies were sent."),
		acked:     counter(metric.ConfigsAcked, "Configurations that proxies have taken."),
		rejected:  counter(metric.ConfigsRejected, "Configurations that proxies have refused."),
		resources: counter(metric.ConfigResources, "Resources in what proxies were sent."),
		size:      counter(metric.ConfigBytes, "Bytes of what proxies were sent."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    metric.ConfigPropagation,
			Help:    "Time from a change in the mesh until a proxy runs the configuration that it led to.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, class),
	}
	registerer.MustRegister(behindCollector(behind), kindCollector{proxyVersions, versions}, kindCollector{proxyKeyExchanges, keyExchanges}, m.failing, m.connected, m.refusing, m.refused, m.sent, m.acked, m.rejected, m.resources, m.size, m.seconds)
	return m
}

// count counts a configuration that was sent.
func (m *metrics) count(class string, resources, bytes int) {
	m.sent.WithLabelValues(class).Inc()
	m.resources.WithLabelValues(class).Add(float64(resources))
	m.size.WithLabelValues(class).Add(float64(bytes))
}

// behindCollector collects the number of proxies that are behind, by class. It is counted when
// the metrics are read, because a proxy falls behind by the time alone.
type behindCollector func() map[string]int

var behindProxies = prometheus.NewDesc(metric.ProxiesBehind,
	"Connected proxies that have taken no configuration for a minute although they do not run the latest one.",
	[]string{metric.LabelClass}, nil)

// Describe is for prometheus.Collector.
func (behindCollector) Describe(ch chan<- *prometheus.Desc) { ch <- behindProxies }

// Collect is for prometheus.Collector.
func (c behindCollector) Collect(ch chan<- prometheus.Metric) {
	for class, number := range c() {
		ch <- prometheus.MustNewConstMetric(behindProxies, prometheus.GaugeValue, float64(number), class)
	}
}

// kindCollector collects the number of proxies by class and another property.
type kindCollector struct {
	metric  *prometheus.Desc
	numbers func() map[[2]string]int
}

var proxyVersions = prometheus.NewDesc(metric.ProxiesByVersion,
	"Connected proxies by the version of their program, which is empty if it is unknown.",
	[]string{metric.LabelClass, metric.LabelVersion}, nil)

var proxyKeyExchanges = prometheus.NewDesc(metric.ProxiesByKeyExchange,
	"Connected proxies by the strongest key exchange of TLS that they have by default, which is empty if it is unknown. Two proxies use what both have.",
	[]string{metric.LabelClass, metric.LabelKeyExchange}, nil)

// Describe is for prometheus.Collector.
func (c kindCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.metric }

// Collect is for prometheus.Collector.
func (c kindCollector) Collect(ch chan<- prometheus.Metric) {
	for key, number := range c.numbers() {
		ch <- prometheus.MustNewConstMetric(c.metric, prometheus.GaugeValue, float64(number), key[0], key[1])
	}
}
