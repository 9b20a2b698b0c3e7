// Package v1alpha4 contains the Go types of split.smi-spec.io/v1alpha4, the Service Mesh
// Interface's splits of a service's traffic. The schema accepts everything that the one
// of Open Service Mesh 1.2 accepted in this version and in v1alpha2; other errors in an
// object are reported in its status.
//
// Both versions have the same schema. v1alpha2 originally had no matches; with a
// separate schema, the server would drop them from objects served as v1alpha2, and
// clients of v1alpha2 would erase them when they write an object back. With equal
// schemas either version could be stored. It is this one, so that v1alpha2 can be
// removed later without a migration.
//
// Objects from files have not been validated by a schema, so readers must expect any
// value of the Go types.
//
// The package must import only apimachinery, k8s.io/api/core/v1 and apis/status.
//
// +kubebuilder:object:generate=true
// +groupName=split.smi-spec.io
package v1alpha4
