//go:build meshguard

package mesh

import "fmt"

// guard remembers the part that it belongs to, so that a change of it is found
// when its digest is next asked for. Tests are built with it.
type guard struct{ part any }

func (g *guard) watch(part any) { g.part = part }

func (g *guard) check(sealed Digest) {
	if DigestOf(g.part) != sealed {
		panic(fmt.Sprintf("mesh: a %T was changed after it was sealed: %+v", g.part, g.part))
	}
}
