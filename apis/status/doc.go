// Package status contains the status fields that all traffic policies share, so that the
// same code writes all of them.
//
// The package must import only apimachinery.
//
// +kubebuilder:object:generate=true
package status
