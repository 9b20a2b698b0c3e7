// Package page writes the results of a benchmark into a page of the documentation.
package page

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Begin and End are the lines between which a page has the results.
const (
	Begin = "<!-- begin of the results -->\n"
	End   = "<!-- end of the results -->\n"
)

// Write replaces the results in a page.
func Write(file, results string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), Begin)
	_, after, ends := strings.Cut(rest, End)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q, between which the results are written", file, strings.TrimSpace(Begin), strings.TrimSpace(End))
	}
	return os.WriteFile(file, []byte(before+Begin+results+End+after), 0o644)
}

// Verdict says in a table whether a result meets its bar.
func Verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

// Duration returns a duration with two or three significant digits.
func Duration(d time.Duration) string {
	ms := d.Seconds() * 1000
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", ms)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f µs", ms*1000)
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
