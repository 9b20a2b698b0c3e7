// Package v1alpha1 contains the Go types of config.openservicemesh.io/v1alpha1, the
// older version of v1alpha2. Both have the same schema, so the API server serves either
// from the other without a conversion webhook.
//
// The package must import only apimachinery and the v1alpha2 package.
//
// +kubebuilder:object:generate=true
// +groupName=config.openservicemesh.io
package v1alpha1
