// Package v1alpha4 contains the Go types of specs.smi-spec.io/v1alpha4, the Service Mesh
// Interface's descriptions of traffic that TrafficTargets, TrafficSplits and Open
// Service Mesh's policies refer to. The schema accepts everything that the one of Open
// Service Mesh 1.2 accepted; other errors in an object are reported in its status.
//
// Objects from files have not been validated by a schema, so readers must expect any
// value of the Go types.
//
// The package must import only apimachinery and apis/status.
//
// +kubebuilder:object:generate=true
// +groupName=specs.smi-spec.io
package v1alpha4
