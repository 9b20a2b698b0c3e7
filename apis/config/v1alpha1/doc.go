// Package v1alpha1 holds the Go types of config.openservicemesh.io/v1alpha1, the
// older name of what v1alpha2 is now. Both versions have one schema, so the API
// server serves either from the other without a conversion webhook.
//
// The package imports nothing but apimachinery and the v1alpha2 package.
//
// +kubebuilder:object:generate=true
// +groupName=config.openservicemesh.io
package v1alpha1
