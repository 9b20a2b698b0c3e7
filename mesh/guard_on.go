//go:build meshguard

package mesh

import "fmt"

// guard remembers its part, so that check detects changes made after sealing. Tests are
// built with it.
type guard struct{ part any }

func (g *guard) watch(part any) { g.part = part }

func (g *guard) check(sealed Digest) {
	if DigestOf(g.part) != sealed {
		panic(fmt.Sprintf("mesh: %T was changed after it was sealed: %+v", g.part, g.part))
	}
}
