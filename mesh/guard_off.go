//go:build !meshguard

package mesh

// guard does nothing unless the program is built with the tag meshguard.
type guard struct{}

func (guard) watch(any)    {}
func (guard) check(Digest) {}
