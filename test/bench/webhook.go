package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// newWebhook returns the webhook of a mesh with default settings, and configures the
// process like the injector.
func newWebhook() (*inject.Webhook, error) {
	debug.SetGCPercent(inject.GCPercent)
	config, err := inject.NewConfig("", "")
	if err != nil {
		return nil, err
	}
	configurator := source.NewConfig(nil, source.ConfigOptions{
		Classes: sidecar.Drivers(), BuiltinImage: sidecar.Image,
		Env: func(string) string { return "" }, InitImage: "outrigger/init:bench",
	})
	namespace := &inject.Namespace{
		Name:        "shop",
		Labels:      map[string]string{metadata.MonitoredBy: "osm"},
		Annotations: map[string]string{metadata.Injection: "enabled"},
	}
	log := slog.New(slog.DiscardHandler)
	injector := inject.New(inject.Options{
		MeshName: "osm", MeshNamespace: "osm-system", Revision: "default",
		Namespace:      func(context.Context, string) (*inject.Namespace, error) { return namespace, nil },
		Configurator:   func() driver.Configurator { return configurator },
		NativeSidecars: func(context.Context) (bool, error) { return true, nil },
		Log:            log,
	}, config)
	return inject.NewWebhook(injector, inject.NewMetrics(prometheus.NewRegistry()), log), nil
}

// review returns the body of a review of a small pod. Each number gives another pod, and
// one pod in a hundred requests its own sidecar resources.
func review(n int) []byte {
	annotations := ""
	if n%100 == 99 {
		annotations = fmt.Sprintf(`,"openservicemesh.io/sidecar-resource-requests-memory":"%d"`, n)
	}
	return fmt.Appendf(nil, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"6fd4b4ad-7a5c-4f4c-a2b4-%012[1]d",
"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},
"requestKind":{"group":"","version":"v1","kind":"Pod"},"requestResource":{"group":"","version":"v1","resource":"pods"},
"namespace":"shop","operation":"CREATE","userInfo":{"username":"system:serviceaccount:kube-system:replicaset-controller","groups":["system:authenticated"]},
"object":{"kind":"Pod","apiVersion":"v1","metadata":{"generateName":"cart-7d9f-","creationTimestamp":null,"labels":{"app":"cart","n":"%[1]d"},
"annotations":{"note":"mine"%[2]s},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"cart-7d9f","uid":"8a1ffb4e-8c57-4ce1-8d0c-0d1f4e3f3f11","controller":true}]},
"spec":{"volumes":[{"name":"data","emptyDir":{}}],"containers":[{"name":"cart","image":"shop/cart:%[1]d","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],
"env":[{"name":"MODE","value":"fast"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},
"livenessProbe":{"tcpSocket":{"port":8080},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},
"readinessProbe":{"httpGet":{"path":"/ready","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},
"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],
"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"cart","serviceAccount":"cart","securityContext":{},
"schedulerName":"default-scheduler","enableServiceLinks":true},"status":{}},"oldObject":null,"dryRun":false,"options":{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}}}`,
		n, annotations)
}
