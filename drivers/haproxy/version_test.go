package haproxy

import (
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

var versionIn = regexp.MustCompile(`^HAProxy version (\d+)\.(\d+)`)

// isAtLeast reports whether the HAProxy of the tests has the version or a later one.
func isAtLeast(t testing.TB, major, minor int) bool {
	t.Helper()
	path, err := Driver{}.FindProxy()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	out, err := exec.Command(path, "-v").Output()
	found := versionIn.FindStringSubmatch(string(out))
	if err != nil || found == nil {
		t.Fatalf("%s -v says %q, %v", path, out, err)
	}
	var has []int
	for _, part := range found[1:] {
		n, _ := strconv.Atoi(part)
		has = append(has, n)
	}
	return slices.Compare(has, []int{major, minor}) >= 0
}
