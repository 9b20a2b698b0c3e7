// Package audit is what the controller finds in the cluster and tells people: what
// is wrong with the MeshConfig, in its status, and which pods have slipped through
// without a sidecar. Both also become Warning Events and metrics.
//
// It writes Events and the status of the MeshConfig, and nothing else.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The reasons of Events that are not about a Problem.
const (
	// ReasonNotInjected says that a pod should have a sidecar and has none.
	ReasonNotInjected = "NotInjected"
	// ReasonInitializationError says that a part of the control plane has ended
	// because it cannot go on.
	ReasonInitializationError = "InitializationError"
)

// maxEvent is the longest message of an Event that every API server takes, in
// bytes.
const maxEvent = 1024

// Warn writes a Warning Event about an object. The Event's name is made from the
// object's UID, the reason and the key, so that an Event which is there already,
// from before a restart too, is not written again.
func Warn(ctx context.Context, c client.Client, about corev1.ObjectReference, reason, key, message string) error {
	if len(message) > maxEvent {
		end := maxEvent - len("…")
		for !utf8.RuneStart(message[end]) {
			end--
		}
		message = message[:end] + "…"
	}
	sum := sha256.Sum256([]byte(string(about.UID) + "\x00" + about.Kind + "\x00" + about.Name + "\x00" + key))
	now := metav1.Now()
	err := c.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: about.Namespace,
			Name:      "outrigger." + strings.ToLower(reason) + "." + hex.EncodeToString(sum[:8]),
		},
		InvolvedObject:      about,
		Reason:              reason,
		Message:             message,
		Type:                corev1.EventTypeWarning,
		Source:              corev1.EventSource{Component: "outrigger-controller"},
		ReportingController: "openservicemesh.io/outrigger-controller",
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("writing an Event about %s %s/%s: %w", about.Kind, about.Namespace, about.Name, err)
	}
	return nil
}

// Metrics are the metrics of the audit.
type Metrics struct {
	problems, mtlsDisabled, uninjected *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_problems",
			Help: "Problems of an object of the user's, by the object and the reason.",
		}, []string{"kind", "namespace", "name", "reason"}),
		mtlsDisabled: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_mtls_disabled",
			Help: "1 for each sidecar class whose pods speak plaintext within the mesh.",
		}, []string{"class"}),
		uninjected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_uninjected_pods",
			Help: "Pods that run without the sidecar that they should have, by namespace.",
		}, []string{"namespace"}),
	}
	registry.MustRegister(m.problems, m.mtlsDisabled, m.uninjected)
	return m
}

func (m *Metrics) meshConfig(problems []mesh.Problem, mtlsDisabled []string) {
	m.problems.Reset()
	for _, p := range problems {
		m.problems.WithLabelValues(p.Object.Kind, p.Object.Namespace, p.Object.Name, p.Reason).Inc()
	}
	m.mtlsDisabled.Reset()
	for _, class := range mtlsDisabled {
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
