// Package page writes the results of a benchmark into a page of the documentation.
package page

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// The lines between which a page has the results.
const (
	begin = "<!-- begin of the results -->\n"
	end   = "<!-- end of the results -->\n"
)

// Write replaces the results in a page.
func Write(file, results string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q, between which the results are written", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, []byte(before+begin+results+end+after), 0o644)
}

// Duration returns a duration with two or three significant digits.
func Duration(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// Size returns a number of bytes with a unit.
func Size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
