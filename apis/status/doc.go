// Package status holds what the status of every traffic policy has in common, so
// that one mapping writes them all.
//
// The package imports nothing but apimachinery.
//
// +kubebuilder:object:generate=true
package status
