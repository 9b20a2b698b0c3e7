package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ImageChecker is implemented by drivers that know which images of their proxy are too
// old for them.
type ImageChecker interface {
	// CheckImage returns an error that says what is wrong with an image and the way out,
	// or nil where nothing is known against it. It looks at the reference only.
	CheckImage(image string) error
}

// CheckImageVersion returns an error if the last part of an image's name begins with the
// proxy's name and its tag is a version before the oldest, both of the form 1.2.3 with
// any number of numbers. Of an image whose tag is no version, or that has none, nothing
// is known.
func CheckImageVersion(image, proxy, oldest string) error {
	reference, _, _ := strings.Cut(image, "@")
	repository, tag, ok := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":")
	if !ok || !strings.HasPrefix(repository, proxy) {
		return nil
	}
	if has := numbers(tag); has != nil && slices.CompareFunc(has, numbers(oldest), cmp.Compare[int]) < 0 {
		return fmt.Errorf("%q is too old: the oldest %s that works is %s; leave the image out for the driver's own", image, proxy, oldest)
	}
	return nil
}

// numbers returns those that a version begins with, nil for none.
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
