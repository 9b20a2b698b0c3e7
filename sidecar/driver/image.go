package driver

import (
	"strconv"
	"strings"
)

// ImageChecker is implemented by drivers that reject unsupported images of their proxy.
type ImageChecker interface {
	// CheckImage returns an error that explains why the image is unsupported and what to
	// do, or nil if no reason is known. It looks only at the reference.
	CheckImage(image string) error
}

// numbers returns the leading numbers of a version, or nil.
func numbers(version string) []int {
	var all []int
	version = strings.TrimPrefix(version, "v")
	if end := strings.IndexFunc(version, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }); end >= 0 {
		version = version[:end]
	}
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		all = append(all, n)
	}
	return all
}
