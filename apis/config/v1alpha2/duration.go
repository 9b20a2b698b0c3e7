package v1alpha2

import (
	"fmt"
	"time"
)

// Duration is a length of time in Go's notation, such as "30s" or "1h30m", and
// never negative. It is a string, so that "" can be told from "0s" and an object
// is written back as it was read.
//
// +kubebuilder:validation:MaxLength=64
// +kubebuilder:validation:XValidation:rule="size(self) == 0 || duration(self) >= duration('0s')",message="must be a Go duration that is not negative, for example 30s, 5m or 1h30m"
type Duration string

// Parse returns the length of time, 0 for an empty Duration. It returns an error
// for what the API server would have refused, since a file has not passed it.
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
