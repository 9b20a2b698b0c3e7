// Package v1alpha3 contains the Go types of access.smi-spec.io/v1alpha3, the Service
// Mesh Interface's access policies. The schema accepts everything that the one of Open
// Service Mesh 1.2 accepted; other errors in an object are reported in its status.
//
// Objects from files have not been validated by a schema, so readers must expect any
// value of the Go types.
//
// The package must import only apimachinery and apis/status.
//
// +kubebuilder:object:generate=true
// +groupName=access.smi-spec.io
package v1alpha3
