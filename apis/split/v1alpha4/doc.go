// Package v1alpha4 holds the Go types of split.smi-spec.io/v1alpha4, the Service Mesh
// Interface's splits of a service's traffic. The API server admits all that the schema
// of Open Service Mesh 1.2 admitted in this version and in v1alpha2; what is wrong in
// an object beyond that is said in its status.
//
// Both versions have one schema, and this one is stored. v1alpha2 had no matches; with
// a schema of its own the server would drop them from what it serves as v1alpha2, and
// a client of v1alpha2 that writes an object back would erase them. Any version could
// be stored then; it is the newer one, so that v1alpha2 can be dropped some day without
// a migration.
//
// An object that comes from a file has passed no schema, so readers must expect any
// value that the Go types can hold.
//
// The package imports nothing but apimachinery, k8s.io/api/core/v1 and apis/status.
//
// +kubebuilder:object:generate=true
// +groupName=split.smi-spec.io
package v1alpha4
