//go:build !meshguard

package mesh

// guard is nothing in an ordinary build. See the one with the tag meshguard.
type guard struct{}

func (guard) watch(any)    {}
func (guard) check(Digest) {}
