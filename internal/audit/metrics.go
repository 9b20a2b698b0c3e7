package audit

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Metrics are the metrics of the audit.
type Metrics struct {
	problems, mtlsDisabled, uninjected *prometheus.GaugeVec

	mu sync.Mutex
	// counted has the number of Problems by object and reason.
	counted map[mesh.ObjectRef]map[string]int
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metric.Problems,
			Help: "Problems of an object of the user's, by the object and the reason.",
		}, []string{metric.LabelKind, metric.LabelNamespace, metric.LabelName, metric.LabelReason}),
		mtlsDisabled: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metric.MTLSDisabled,
			Help: "1 for each sidecar class whose pods speak plaintext within the mesh.",
		}, []string{metric.LabelClass}),
		uninjected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metric.UninjectedPods,
			Help: "Pods that run without the sidecar that they should have, by namespace.",
		}, []string{metric.LabelNamespace}),
		counted: make(map[mesh.ObjectRef]map[string]int),
	}
	registry.MustRegister(m.problems, m.mtlsDisabled, m.uninjected)
	return m
}

// Forget resets all metrics, because another replica takes over.
func (m *Metrics) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems.Reset()
	m.mtlsDisabled.Reset()
	m.uninjected.Reset()
	clear(m.counted)
}

// count sets the number of Problems of an object. It touches only series of that object,
// since there may be many others.
func (m *Metrics) count(object mesh.ObjectRef, problems []mesh.Problem) {
	numbers := make(map[string]int)
	for _, p := range problems {
		numbers[p.Reason]++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for reason, number := range numbers {
		m.problems.WithLabelValues(object.Kind, object.Namespace, object.Name, reason).Set(float64(number))
	}
	for reason := range m.counted[object] {
		if numbers[reason] == 0 {
			m.problems.DeleteLabelValues(object.Kind, object.Namespace, object.Name, reason)
		}
	}
	if m.counted[object] = numbers; len(numbers) == 0 {
		delete(m.counted, object)
	}
}

// plaintext sets the sidecar classes that use plaintext within the mesh.
func (m *Metrics) plaintext(classes []string) {
	m.mtlsDisabled.Reset()
	for _, class := range classes {
		m.mtlsDisabled.WithLabelValues(class).Set(1)
	}
}

func (m *Metrics) uninjectedPods(namespace string, number int) {
	if number == 0 {
		m.uninjected.DeleteLabelValues(namespace)
		return
	}
	m.uninjected.WithLabelValues(namespace).Set(float64(number))
}
