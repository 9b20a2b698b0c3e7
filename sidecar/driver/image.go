package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ImageChecker is implemented by drivers that reject unsupported images of their proxy.
type ImageChecker interface {
	// CheckImage returns an error that explains why the image is unsupported and what to
	// do, or nil if no reason is known. It looks only at the reference.
	CheckImage(image string) error
}

// CheckImageVersion returns an error if the last path element of the image begins with
// the proxy's name and its tag is a version before oldest. Versions are numbers
// separated by dots, such as 1.2.3. Images with other tags, or without a tag, are
// accepted.
func CheckImageVersion(image, proxy, oldest string) error {
	reference, _, _ := strings.Cut(image, "@")
	repository, tag, ok := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":")
	if !ok || !strings.HasPrefix(repository, proxy) {
		return nil
	}
	if has := numbers(tag); has != nil && slices.CompareFunc(has, numbers(oldest), cmp.Compare[int]) < 0 {
		return fmt.Errorf("%q is too old: the oldest supported %s is %s; omit the image to use the driver's default", image, proxy, oldest)
	}
	return nil
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
