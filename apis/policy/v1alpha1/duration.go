package v1alpha1

import (
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// Duration is a non-negative duration in Go's notation, such as "30s" or "1h30m". The API
// server accepts any string, as with Open Service Mesh's schema.
type Duration string

// Parse returns the duration, 0 if empty, or an error if it is invalid.
func (d Duration) Parse() (time.Duration, error) {
	return v1alpha2.Duration(d).Parse()
}
