package root

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// TestLaws changes objects and Secrets at random and checks the invariant of the mesh: every
// valid certificate is trusted by all peers, even by those that receive a new root only
// after the propagation time.
func TestLaws(t *testing.T) {
	const (
		life        = 10 * time.Hour
		propagation = time.Hour
	)
	var all []*candidate
	for i := range 5 {
		cert, key, err := issuer.NewRoot("root "+randomName(), issuer.RootLife)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ownCandidate(fmt.Sprint("Secret ", i), cert, key)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var s state
		now := time.Now()
		signed := make(map[string]time.Time)
		trusted := make(map[string]time.Time)
		began := false
		switches := 0
		for range 400 {
			now = now.Add(time.Duration(random.Int64N(int64(2 * time.Hour))))
			w := desired{}
			for _, c := range all {
				switch random.IntN(3) {
				case 0:
					w.trusted = append(w.trusted, c)
				case 1:
					w.unresolved = append(w.unresolved, c.Source)
				}
			}
			if len(w.trusted) > 0 && random.IntN(4) > 0 {
				w.signing = w.trusted[random.IntN(len(w.trusted))]
			}
			before := s.Signer.ID
			var wake time.Time
			s, wake = s.advance(w, now, life, propagation)
			data, err := s.encode()
			if err != nil {
				t.Fatal(err)
			}
			if s, err = parseState(store.Secret{Data: data}); err != nil {
				t.Fatal(err)
			}
			if s.Signer.ID == "" {
				continue
			}
			var roots []string
			for _, r := range s.Roots {
				roots = append(roots, pki.Fingerprint(r.root))
			}
			for _, print := range roots {
				if _, ok := trusted[print]; !ok {
					trusted[print] = now
					if !began {
						trusted[print] = now.Add(-propagation)
					}
				}
			}
			for print := range trusted {
				if !slices.Contains(roots, print) {
					delete(trusted, print)
				}
			}
			began = true
			if before != "" && before != s.Signer.ID {
				switches++
			}
			for _, print := range s.Signer.Roots {
				since, ok := trusted[print]
				// Stored times have a resolution of seconds.
				if !ok || now.Sub(since) < propagation-time.Second {
					t.Fatalf("seed %d: a root signs that is trusted for %s (%t)", seed, now.Sub(since), ok)
				}
				// It signs until the next event, which is now at the latest.
				signed[print] = now
			}
			if before != "" {
				for _, c := range all {
					if c.ID == before {
						signed[c.Roots[0]] = now
					}
				}
			}
			for print, last := range signed {
				if now.Before(last.Add(life)) && !slices.Contains(roots, print) {
					t.Fatalf("seed %d: a root is not trusted that signed %s ago", seed, now.Sub(last))
				}
			}
			if !wake.IsZero() && !wake.After(now) {
				t.Fatalf("seed %d: it is to be looked at again %s ago", seed, now.Sub(wake))
			}
			// Unchanged inputs do not change the state.
			same, _ := s.advance(w, now, life, propagation)
			again, err := same.encode()
			if err != nil {
				t.Fatal(err)
			}
			if string(again[keyState]) != string(data[keyState]) {
				t.Fatalf("seed %d: the state changes by itself:\n%s\n%s", seed, data[keyState], again[keyState])
			}
		}
		if switches < 10 {
			t.Errorf("seed %d: only %d switches", seed, switches)
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"signer":{"id":"a"},"roots":[{"certificate":"x"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseState(store.Secret{Data: map[string][]byte{keyState: text}})
		if err == nil {
			s.advance(desired{}, time.Now(), time.Hour, time.Minute)
		}
	})
}
