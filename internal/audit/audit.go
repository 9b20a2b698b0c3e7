// Package audit is what the controller finds in the cluster and tells people: what
// is wrong with the MeshConfig and with traffic policies, in their status, and which
// pods have slipped through without a sidecar. All of it also becomes Warning Events
// and metrics.
//
// It writes Events and the status of those objects, and nothing else.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The reasons of Events that are not about a Problem.
const (
	// ReasonNotInjected says that a pod should have a sidecar and has none.
	ReasonNotInjected = "NotInjected"
	// ReasonProxyFailing says that a pod's proxy does not stay up.
	ReasonProxyFailing = "ProxyFailing"
	// ReasonInitializationError says that a part of the control plane has ended
	// because it cannot go on.
	ReasonInitializationError = "InitializationError"
)

// maxEvent is the longest message of an Event that every API server takes, in
// bytes.
const maxEvent = 1024

// Warn writes a Warning Event about an object. The Event's name is made from the
// object's UID, the reason and the key, so that an Event which is there already,
// from before a restart too, is not written again. A namespace that is going away
// takes no Events, and nobody misses them.
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
	ending := apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	if err != nil && !apierrors.IsAlreadyExists(err) && !ending {
		return fmt.Errorf("writing an Event about %s %s/%s: %w", about.Kind, about.Namespace, about.Name, err)
	}
	return nil
}
