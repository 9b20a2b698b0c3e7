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

	"github.com/outrigger-mesh/outrigger/internal/metric"
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

// publish updates the caBundle of each webhook of the configuration if it is outdated. It
// returns when to check again.
func (p *publisher) publish(ctx context.Context, config *admissionv1.MutatingWebhookConfiguration, wanted pki.Bundle, now time.Time) time.Time {
	wake := now.Add(longestSleep)
	if config == p.replaced {
		return wake
	}
	foreign := map[string]time.Time{}
	var operations []operation
	for i, webhook := range config.Webhooks {
		kept := pki.Readable(webhook.ClientConfig.CABundle).Only(func(ca *x509.Certificate) bool {
			if wanted.Has(ca) || now.After(ca.NotAfter) {
				return false
			}
			first := since(p.foreign, ca, now)
			foreign[pki.Fingerprint(ca)] = first
			removal := first.Add(foreignFactor * p.delay)
			if removal.After(now) {
				wake = earlier(wake, removal)
			}
			return removal.After(now)
		})
		due := wanted.With(kept).Encode()
		if !bytes.Equal(due, webhook.ClientConfig.CABundle) {
			operations = append(operations, operation{
				Op:    "add", // RFC 6902: replaces an existing value
				Path:  fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i),
				Value: due,
			})
		}
	}
	p.foreign = foreign
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

// patch applies the operations if the configuration has not changed, and reports whether
// it did.
func (p *publisher) patch(ctx context.Context, config *admissionv1.MutatingWebhookConfiguration, operations []operation) bool {
	webhooks := len(operations)
	// The indices are only valid for this version: setting another version than the
	// live one is a conflict.
	operations = append(operations, operation{Op: "add", Path: "/metadata/resourceVersion", Value: config.ResourceVersion})
	body, err := json.Marshal(operations)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		_, err = p.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(bounded, p.name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	}
	switch {
	case err == nil:
		p.metrics.patches.WithLabelValues(metric.ResultSuccess).Inc()
		p.log.Info("wrote the caBundle of the MutatingWebhookConfiguration", "name", p.name, "webhooks", webhooks)
	case ctx.Err() != nil:
		// The process is shutting down.
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// The event of the other change will follow.
		p.metrics.patches.WithLabelValues(metric.ResultConflict).Inc()
	default:
		p.metrics.patches.WithLabelValues(metric.ResultError).Inc()
		p.log.Error("cannot write the caBundle of the MutatingWebhookConfiguration; allow the injector to patch it, or disable the patching and set the caBundle by other means", "name", p.name, "error", err)
	}
	return err == nil
}
