// Package v1alpha1 contains the Go types of policy.openservicemesh.io/v1alpha1: egress
// and ingress of the mesh, retries, and settings for the traffic to a host. They have
// every field of Open Service Mesh 1.2, of its later rate limits, and of osm-edge 1.3.
// Outrigger's own fields are in UpstreamTrafficSettingSpec and marked as such.
//
// The schema accepts everything that those of Open Service Mesh accepted; other errors
// in an object, and fields without effect, are reported in its status. The Go types are
// as wide as the original schemas: an informer reads either all objects of a kind or
// none, and one odd number must not hide the others. Outrigger's own fields are
// validated by the API server.
//
// Objects from files have not been validated by a schema, so readers must expect any
// value of the Go types.
//
// The package must import only apimachinery, k8s.io/api/core/v1, apis/status and, for
// its Duration, apis/config/v1alpha2.
//
// +kubebuilder:object:generate=true
// +groupName=policy.openservicemesh.io
package v1alpha1
