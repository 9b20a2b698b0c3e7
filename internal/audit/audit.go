// Package audit reports what the controller finds in the cluster: the Problems of the
// MeshConfig and of traffic policies, in their status, and pods that run without the
// sidecar they should have. Everything is also reported as Warning Events and metrics.
//
// The package writes only Events and the status of these objects.
package audit

import (
	"cmp"
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
	// ReasonNotInjected: a pod lacks the sidecar that it should have.
	ReasonNotInjected = "NotInjected"
	// ReasonProxyFailing: a pod's proxy crashes repeatedly.
	ReasonProxyFailing = "ProxyFailing"
	// ReasonProxyNotUpgraded: another version of a pod's proxy could not take over.
	ReasonProxyNotUpgraded = "ProxyNotUpgraded"
	// reasonInitializationError: a part of the control plane has terminated with an error.
	reasonInitializationError = "InitializationError"
)

// maxEvent is the maximum length of an Event's message that all API servers accept, in
// bytes.
const maxEvent = 1024

// Warn writes a Warning Event about an object. The Event's name is derived from the
// object's UID, the reason and the key, so that an existing Event is not written again,
// even after a restart. Events in terminating namespaces, which don't accept them, are
// dropped. Those about objects without a namespace are written in the namespace default.
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
			// Those about objects without a namespace have to be there.
			Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault),
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
