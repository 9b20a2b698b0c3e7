package mesh

// Sealed is embedded in parts that Snapshots and Views share. A part is filled, then
// sealed, and never changed afterwards.
type Sealed struct {
	digest Digest
	guard  guard
}

// Digest returns the digest computed by Seal. It panics if the part was not sealed. In
// programs built with the tag meshguard, it also panics if the part was changed since.
func (s *Sealed) Digest() Digest {
	if s.digest.IsZero() {
		panic("mesh: part is not sealed; call mesh.Seal once it is filled")
	}
	s.guard.check(s.digest)
	return s.digest
}

func (s *Sealed) seal(part any) {
	s.digest = DigestOf(part)
	s.guard.watch(part)
}

// Seal computes the digest of the part and returns the part, which must not be changed
// afterwards. The part is a pointer to a struct that embeds Sealed.
func Seal[P interface{ seal(any) }](part P) P {
	part.seal(part)
	return part
}
