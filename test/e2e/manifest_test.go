//go:build e2e

package e2e

// namespaces are the namespaces of samples/bookstore-smi, without its MeshConfig.
const namespaces = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: bookbuyer, labels: {openservicemesh.io/monitored-by: osm}, annotations: {openservicemesh.io/sidecar-injection: enabled}}}
- {apiVersion: v1, kind: Namespace, metadata: {name: bookthief, labels: {openservicemesh.io/monitored-by: osm}, annotations: {openservicemesh.io/sidecar-injection: enabled}}}
- {apiVersion: v1, kind: Namespace, metadata: {name: bookstore, labels: {openservicemesh.io/monitored-by: osm}, annotations: {openservicemesh.io/sidecar-injection: enabled}}}
- {apiVersion: v1, kind: Namespace, metadata: {name: bookwarehouse, labels: {openservicemesh.io/monitored-by: osm}, annotations: {openservicemesh.io/sidecar-injection: enabled}}}
- {apiVersion: v1, kind: Namespace, metadata: {name: edge}}
`

// thiefMayBuy gives the thief access to the bookstore.
const thiefMayBuy = `
apiVersion: v1
kind: List
items:
- apiVersion: access.smi-spec.io/v1alpha3
  kind: TrafficTarget
  metadata: {name: thief-v1, namespace: bookstore}
  spec:
    destination: {kind: ServiceAccount, name: bookstore-v1, namespace: bookstore}
    sources: [{kind: ServiceAccount, name: bookthief, namespace: bookthief}]
    rules: [{kind: HTTPRouteGroup, name: bookstore, matches: [buy]}]
- apiVersion: access.smi-spec.io/v1alpha3
  kind: TrafficTarget
  metadata: {name: thief-v2, namespace: bookstore}
  spec:
    destination: {kind: ServiceAccount, name: bookstore-v2, namespace: bookstore}
    sources: [{kind: ServiceAccount, name: bookthief, namespace: bookthief}]
    rules: [{kind: HTTPRouteGroup, name: bookstore, matches: [buy]}]
`

// jobs are a Job that succeeds and one that fails.
const jobs = `
apiVersion: v1
kind: List
items:
- apiVersion: batch/v1
  kind: Job
  metadata: {name: succeeds, namespace: bookbuyer}
  spec:
    backoffLimit: 0
    template:
      spec:
        restartPolicy: Never
        containers: [{name: job, image: "docker.io/outriggermesh/bookstore:0.2.0", args: [-help]}]
- apiVersion: batch/v1
  kind: Job
  metadata: {name: fails, namespace: bookbuyer}
  spec:
    backoffLimit: 0
    template:
      spec:
        restartPolicy: Never
        containers: [{name: job, image: "docker.io/outriggermesh/bookstore:0.2.0", args: [no-role]}]
`
