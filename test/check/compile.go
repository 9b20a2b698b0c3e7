package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// imported is a template of 'go list -deps -test' for the packages outside the standard library
// that are no programs and no packages compiled for a test.
const imported = `{{if and (not .Standard) (not .ForTest) (ne .Name "main")}}{{.ImportPath}}{{end}}`

// compile compiles what the packages and their tests import, and returns the time of all
// processors that this took. On a new machine it takes minutes, in which tests that measure
// time would measure the compiler. A package that does not compile is left to go test, which
// says whose tests it breaks.
func (c check) compile(ctx context.Context, packages []string) (time.Duration, error) {
	list, err := c.command(ctx, "go", slices.Concat([]string{"list", "-e", "-deps", "-test", "-f", imported}, packages)...)
	if err != nil {
		return 0, err
	}
	needed := strings.Fields(list)
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", thrifty}, needed)...)
	cmd.Dir = c.dir
	stop := every(progressInterval, func(after time.Duration) {
		fmt.Fprintf(os.Stderr, "... compiling %d packages, %.0f s\n", len(needed), after.Seconds())
	})
	defer stop()
	if err := cmd.Run(); ctx.Err() != nil || cmd.ProcessState == nil {
		return 0, fmt.Errorf("compiling: %w", err)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// every calls the function at each interval, with the time since the start, until stop.
func every(interval time.Duration, f func(after time.Duration)) (stop func()) {
	began, ticker, ended := time.Now(), time.NewTicker(interval), make(chan struct{})
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				f(time.Since(began))
			}
		}
	}()
	return func() { ticker.Stop(); close(ended) }
}
