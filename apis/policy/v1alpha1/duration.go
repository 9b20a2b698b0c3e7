package v1alpha1

import (
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// Duration is a length of time in Go's notation, such as "30s" or "1h30m", and never
// negative. The schema of Open Service Mesh took any string, so the API server does.
type Duration string

// Parse returns the length of time, 0 for an empty Duration, or an error for what is
// not one.
func (d Duration) Parse() (time.Duration, error) {
	return v1alpha2.Duration(d).Parse()
}
