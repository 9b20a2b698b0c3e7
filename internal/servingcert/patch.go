package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// fieldManager owns the caBundle fields in the configuration's managedFields.
const fieldManager = "outrigger-injector"

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// publish writes the caBundle of each webhook of the configuration that has not
// the one that it should have. It returns when to look again.
func (p *publisher) publish(ctx context.Context, config *admissionv1.MutatingWebhookConfiguration, wanted pki.Bundle, now time.Time) time.Time {
	wake := now.Add(longestSleep)
	if config == p.replaced {
		return wake
	}
	strangers := map[fingerprint]time.Time{}
	var operations []operation
	for i, webhook := range config.Webhooks {
		kept := pki.Readable(webhook.ClientConfig.CABundle).Only(func(ca *x509.Certificate) bool {
			if wanted.Has(ca) || now.After(ca.NotAfter) {
				return false
			}
			first := since(p.strangers, ca, now)
			strangers[fingerprintOf(ca)] = first
			leaves := first.Add(strangerFactor * p.delay)
			if leaves.After(now) {
				wake = earlier(wake, leaves)
			}
			return leaves.After(now)
		})
		due := wanted.With(kept).Encode()
		if !bytes.Equal(due, webhook.ClientConfig.CABundle) {
			operations = append(operations, operation{
				Op:    "add", // RFC 6902: replaces what is there
				Path:  fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i),
				Value: due,
			})
		}
	}
	p.strangers = strangers
	if len(operations) == 0 {
		p.backoff = newBackoff()
		return wake
	}
	if !p.patch(ctx, config, operations) {
		return earlier(wake, now.Add(p.backoff.Step()))
	}
	p.replaced = config
	return wake
}

// patch applies the operations to the configuration as it was seen, or not at
// all, and reports whether it did.
func (p *publisher) patch(ctx context.Context, config *admissionv1.MutatingWebhookConfiguration, operations []operation) bool {
	webhooks := len(operations)
	// The indices are those of this version: a patch that sets another version
	// than the live one is a conflict.
	operations = append(operations, operation{Op: "add", Path: "/metadata/resourceVersion", Value: config.ResourceVersion})
	body, err := json.Marshal(operations)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		_, err = p.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(bounded, p.name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	}
	switch {
	case err == nil:
		p.metrics.patches.WithLabelValues(resultSuccess).Inc()
		p.log.Info("wrote the caBundle of the MutatingWebhookConfiguration", "name", p.name, "webhooks", webhooks)
	case ctx.Err() != nil:
		// The process ends.
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// The event that tells of the other change is on its way.
		p.metrics.patches.WithLabelValues(resultConflict).Inc()
	default:
		p.metrics.patches.WithLabelValues(resultError).Inc()
		p.log.Error("cannot write the caBundle of the MutatingWebhookConfiguration; allow the injector to patch it, or switch the patching off and set the caBundle by other means", "name", p.name, "error", err)
	}
	return err == nil
}
