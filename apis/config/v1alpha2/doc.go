// Package v1alpha2 holds the Go types of config.openservicemesh.io/v1alpha2, the
// configuration of the whole mesh. It is the storage version, and the API server
// holds its schema: every field of Open Service Mesh 1.2 and of osm-edge 1.3 is in
// it, so that a MeshConfig exported from either applies unchanged.
//
// A field that is accepted is not always a field that does something. What has no
// effect in Outrigger is said in the object's status, not by refusing the object.
//
// A MeshConfig that comes from a file has seen neither the defaults nor the rules
// of the schema, so readers must treat an empty value as the default that its
// comment names.
//
// The package imports nothing but apimachinery and k8s.io/api/core/v1.
//
// +kubebuilder:object:generate=true
// +groupName=config.openservicemesh.io
package v1alpha2
