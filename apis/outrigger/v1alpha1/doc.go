// Package v1alpha1 contains the Go types of outrigger.dev/v1alpha1: policies of the mesh's own that
// no standard API has yet. AccessPolicy follows Gateway API's GEP-3779, whose types may replace it.
//
// In all lists of a rule an empty list is nothing, and a missing one is anything.
//
// Objects from files have not been validated by a schema, so readers must expect any value of the
// Go types.
//
// +kubebuilder:object:generate=true
// +groupName=outrigger.dev
package v1alpha1
