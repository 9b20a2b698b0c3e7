package mesh

// Sealed is embedded in the parts that are shared between Snapshots and Views. A
// part is filled, sealed, and from then on never changed.
type Sealed struct {
	digest Digest
	guard  guard
}

// Digest returns the digest that the part was sealed with. It panics if the part
// was not sealed, and, in a program built with the tag meshguard, if it was changed
// since.
func (s *Sealed) Digest() Digest {
	if s.digest.IsZero() {
		panic("mesh: a part is used that was not sealed; call mesh.Seal when it is filled")
	}
	s.guard.check(s.digest)
	return s.digest
}

func (s *Sealed) seal(part any) {
	s.digest = DigestOf(part)
	s.guard.watch(part)
}

// Seal computes the digest of the part and returns the part, which must not be
// changed any more. The part is a pointer to a struct that embeds Sealed.
func Seal[P interface{ seal(any) }](part P) P {
	part.seal(part)
	return part
}
