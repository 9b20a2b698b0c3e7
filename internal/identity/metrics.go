package identity

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// Values of the label "purpose".
const (
	purposeWorkload   = "workload"
	purposeController = "controller"
)

// metrics count what a Manager does.
type metrics struct {
	issued  *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer, m *Manager) (*metrics, error) {
	metrics := &metrics{
		issued: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.CertificatesIssued,
			Help: "Certificates issued to workloads and to the controller itself.",
		}, []string{metric.LabelPurpose}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    metric.IssueDuration,
			Help:    "Time to check a workload's request and issue its certificate, for successful requests.",
			Buckets: []float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	for _, purpose := range []string{purposeWorkload, purposeController} {
		metrics.issued.WithLabelValues(purpose)
	}
	return metrics, register(registerer, metrics.issued, metrics.seconds, expiries{m})
}

func register(registerer prometheus.Registerer, collectors ...prometheus.Collector) error {
	if registerer == nil {
		return nil
	}
	for _, collector := range collectors {
		if err := registerer.Register(collector); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) signed(begin time.Time) {
	m.issued.WithLabelValues(purposeWorkload).Inc()
	m.seconds.Observe(time.Since(begin).Seconds())
}

// expiries collects the expiry of the trusted roots and of the controller's certificate.
type expiries struct{ manager *Manager }

var (
	rootExpiry = prometheus.NewDesc(metric.RootExpiry,
		"When a root of the trust bundle expires, in seconds since 1970. The label is the beginning of its SHA-256.",
		[]string{metric.LabelRoot}, nil)
	ownExpiry = prometheus.NewDesc(metric.ControllerCertificateExpiry,
		"When the controller's own certificate expires, in seconds since 1970.", nil, nil)
)

// Describe is for prometheus.Collector.
func (e expiries) Describe(ch chan<- *prometheus.Desc) {
	ch <- rootExpiry
	ch <- ownExpiry
}

// Collect is for prometheus.Collector.
func (e expiries) Collect(ch chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, certificate *x509.Certificate, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(certificate.NotAfter.Unix()), labels...)
	}
	if now := e.manager.current.Load(); now != nil {
		for _, root := range now.roots {
			send(rootExpiry, root, describeRoot(root).Fingerprint[:16])
		}
		if now.own != nil {
			send(ownExpiry, now.own.Leaf)
		}
	}
}
