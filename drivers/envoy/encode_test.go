package envoy

import (
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestEncoderDigest changes every encoded part: no two resources may have equal
// digests.
func TestEncoderDigest(t *testing.T) {
	one, other := constantOf(wrapperspb.String("one")), constantOf(wrapperspb.String("other"))
	digest := func(before, inside, after string, constants ...constant) mesh.Digest {
		e := newEncoder(0)
		e.text(1, before)
		e.message(2, func() {
			e.message(3, func() {
				e.text(4, inside)
				for _, c := range constants {
					e.constant(c)
				}
				e.text(5, after)
			})
		})
		e.number(6, uint64(len(before)))
		return e.resource("type", "name").Digest()
	}
	if first, again := digest("b", "i", "a", one), digest("b", "i", "a", one); first != again {
		t.Error("equal resources have different digests")
	}
	seen := make(map[mesh.Digest]string)
	for name, d := range map[string]mesh.Digest{
		"the first":                  digest("b", "i", "a", one),
		"what comes before differs":  digest("B", "i", "a", one),
		"what is inside differs":     digest("b", "I", "a", one),
		"what comes after differs":   digest("b", "i", "A", one),
		"the constant differs":       digest("b", "i", "a", other),
		"there is no constant":       digest("b", "i", "a"),
		"there are two":              digest("b", "i", "a", one, other),
		"they are the other way":     digest("b", "i", "a", other, one),
		"there are many":             digest("b", "i", "a", one, one, one, one, one),
		"of many the last differs":   digest("b", "i", "a", one, one, one, one, other),
		"many, and the text differs": digest("b", "i", "A", one, one, one, one, other),
	} {
		if same, ok := seen[d]; ok {
			t.Errorf("%q has the digest of %q", name, same)
		}
		seen[d] = name
	}
}

// TestFrozen embeds a frozen message in another.
func TestFrozen(t *testing.T) {
	plain := match(mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/a"}, Methods: []string{"GET", "PUT"}})
	want, err := deterministic.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	got, err := deterministic.Marshal(frozen(plain))
	if err != nil || string(got) != string(want) {
		t.Errorf("frozen it is encoded as %q, %v, want %q", got, err, want)
	}
	if _, err := deterministic.Marshal(frozen(wrapperspb.String("\xff"))); err == nil {
		t.Error("a message that cannot be encoded can be when it is frozen")
	}
}
