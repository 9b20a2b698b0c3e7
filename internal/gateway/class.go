package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// makePeriod is how long to wait for Gateway API's CRDs, or for an API server that refuses.
const makePeriod = 10 * time.Second

// makeClasses makes a GatewayClass for each class of proxies. One that exists is left alone.
func makeClasses(ctx context.Context, c client.Client, classes []string, log *slog.Logger) {
	var last string
	for {
		err := makeAll(ctx, c, classes)
		switch {
		case err == nil:
			return
		case last != err.Error():
			last = err.Error()
			log.Warn("GatewayClasses are not there yet; this is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(makePeriod):
		}
	}
}

func makeAll(ctx context.Context, c client.Client, classes []string) error {
	for _, class := range classes {
		of := &gateway.GatewayClass{
			ObjectMeta: metav1.ObjectMeta{Name: source.GatewayClassPrefix + class, Labels: map[string]string{managedByLabel: managedBy}},
			Spec:       gateway.GatewayClassSpec{ControllerName: source.ControllerName},
		}
		switch err := c.Create(ctx, of); {
		case err == nil, apierrors.IsAlreadyExists(err):
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
			return fmt.Errorf("creating GatewayClass %s: Gateway API's CRDs are not installed: %w", of.Name, err)
		default:
			return fmt.Errorf("creating GatewayClass %s: %w", of.Name, err)
		}
	}
	return nil
}
