// Package v1alpha3 holds the Go types of access.smi-spec.io/v1alpha3, the Service
// Mesh Interface's word on who may call whom. The API server admits all that the
// schema of Open Service Mesh 1.2 admitted; what is wrong in an object beyond that
// is said in its status.
//
// An object that comes from a file has passed no schema, so readers must expect any
// value that the Go types can hold.
//
// The package imports nothing but apimachinery and apis/status.
//
// +kubebuilder:object:generate=true
// +groupName=access.smi-spec.io
package v1alpha3
