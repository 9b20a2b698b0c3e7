// Package v1alpha2 contains the Go types of split.smi-spec.io/v1alpha2, the version that
// Open Service Mesh 1.2 served. Its schema is that of v1alpha4, for the reason given
// there, so the API server serves either from the other without a conversion webhook.
//
// The package must import only apimachinery, apis/status and the v1alpha4 package.
//
// +kubebuilder:object:generate=true
// +groupName=split.smi-spec.io
package v1alpha2
