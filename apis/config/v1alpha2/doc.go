// Package v1alpha2 contains the Go types of config.openservicemesh.io/v1alpha2, the
// configuration of the mesh. It is the storage version. The schema has every field of
// Open Service Mesh 1.2 and osm-edge 1.3, so that a MeshConfig exported from either
// applies unchanged.
//
// Not every accepted field has an effect. Fields without effect in Outrigger are
// reported in the object's status, not rejected.
//
// A MeshConfig from a file has neither been defaulted nor validated by the schema, so
// readers must treat an empty value as the default given in its comment.
//
// The package must import only apimachinery and k8s.io/api/core/v1.
//
// +kubebuilder:object:generate=true
// +groupName=config.openservicemesh.io
package v1alpha2
