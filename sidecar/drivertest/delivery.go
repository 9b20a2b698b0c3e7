package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var deliveryRules = []rule{
	{
		name:  "accepted",
		why:   "The real proxy takes what Translate makes of every View. A proxy that refuses a configuration keeps its last good one, so the whole pod would be left behind for what one user wrote.",
		check: deliveryAccepted,
	},
}

// checkLimit is how long the proxy may take to read one configuration.
const checkLimit = time.Minute

func deliveryAccepted(s subject) error {
	checker, ok := s.driver.(driver.Checker)
	if !ok {
		return nil
	}
	all := views()
	if testing.Short() {
		all = all[:fewViews]
	}
	var errs []error
	for _, v := range all {
		ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
		err := checker.Check(ctx, v.view)
		cancel()
		if errors.Is(err, driver.ErrNoProxy) {
			return err
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
	}
	return errors.Join(errs...)
}
