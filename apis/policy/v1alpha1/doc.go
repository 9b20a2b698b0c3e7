// Package v1alpha1 holds the Go types of policy.openservicemesh.io/v1alpha1: what may
// leave the mesh and enter it, and how the traffic to a host is treated. Every field of
// Open Service Mesh 1.2, of the rate limits that came after it, and of osm-edge 1.3 is
// in them. Outrigger's own fields are in UpstreamTrafficSettingSpec and say so.
//
// The API server admits all that the schemas of Open Service Mesh admitted; what is
// wrong in an object beyond that, or has no effect, is said in its status. So the types
// are as wide as those schemas were: an informer reads all objects of a kind or none,
// and one odd number must not hide the others. Outrigger's own fields are checked by
// the API server.
//
// An object that comes from a file has passed no schema, so readers must expect any
// value that the Go types can hold.
//
// The package imports nothing but apimachinery, k8s.io/api/core/v1, apis/status and, for
// its Duration, apis/config/v1alpha2.
//
// +kubebuilder:object:generate=true
// +groupName=policy.openservicemesh.io
package v1alpha1
