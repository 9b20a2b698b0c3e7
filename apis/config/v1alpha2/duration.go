package v1alpha2

import (
	"fmt"
	"time"
)

// Duration is a non-negative duration in Go's notation, such as "30s" or "1h30m". It is a
// string, so that "" differs from "0s" and objects are written back unchanged.
//
// +kubebuilder:validation:MaxLength=64
// +kubebuilder:validation:XValidation:rule="size(self) == 0 || duration(self) >= duration('0s')",message="must be a Go duration that is not negative, for example 30s, 5m or 1h30m"
type Duration string

// Parse returns the duration, 0 if empty. It returns an error for values that the API
// server would have rejected, since objects from files have not been validated.
func (d Duration) Parse() (time.Duration, error) {
	if d == "" {
		return 0, nil
	}
	length, err := time.ParseDuration(string(d))
	if err != nil || length < 0 {
		return 0, fmt.Errorf("%q is not a Go duration of at least 0s, for example 30s, 5m or 1h30m", string(d))
	}
	return length, nil
}
