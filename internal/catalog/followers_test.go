package catalog

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// changedViews returns the UIDs of the Views that are new, changed or gone, sorted.
func changedViews(next, former fact.Views) []string {
	uids := slices.Concat(next.Names(), former.Names())
	slices.Sort(uids)
	return slices.DeleteFunc(slices.Compact(uids), func(uid string) bool {
		was, had := former.Get(uid)
		is, has := next.Get(uid)
		return had == has && (!has || was.Digest() == is.Digest())
	})
}

// TestFollowers checks that what changes for all is told only of proxies whose View was asked
// for, and that a proxy whose Outbound becomes another one is told its changes too.
func TestFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t, append(town(), pod("shop/web-2", "web", "10.1.0.2"), pod("shop/other-1", "other", "10.1.0.9"))...)
		changed := c.Subscribe(t.Context().Done())
		next := func(facts ...fact.Fact) (uids []string) {
			c.Apply(facts...)
			time.Sleep(2 * holdOff)
			for {
				synctest.Wait()
				select {
				case uid := <-changed:
					uids = append(uids, uid)
				default:
					slices.Sort(uids)
					return uids
				}
			}
		}
		for _, tt := range []struct {
			what  string
			ask   []string
			facts []fact.Fact
			want  []string
		}{
			{"nobody has asked", nil, server("shop/cart", "10.96.0.2", "10.1.0.3", port(80, 8080, mesh.HTTP)), []string{"uid-shop/cart-1"}},
			{"two have asked", []string{"uid-shop/web-1", "uid-shop/other-1", "uid-shop/nobody"}, server("shop/desk", "10.96.0.4", "10.1.0.4", port(80, 8080, mesh.HTTP)), []string{"uid-shop/desk-1", "uid-shop/other-1", "uid-shop/web-1"}},
			{"one of them gets an Outbound of its own", nil, list(retry("shop/again", "shop/web", 2, 1, "shop/cart")), []string{"uid-shop/web-1", "uid-shop/web-2"}},
			{"a change of both", []string{"uid-shop/web-1"}, server("shop/shelf", "10.96.0.5", "10.1.0.5", port(80, 8080, mesh.HTTP)), []string{"uid-shop/other-1", "uid-shop/shelf-1", "uid-shop/web-1"}},
			{"a change of its own", nil, list(retry("shop/again", "shop/web", 3, 1, "shop/cart")), []string{"uid-shop/web-1"}},
			{"one is gone", nil, list(gone(pod("shop/web-1", "web", "10.1.0.1"))), []string{"uid-shop/web-1"}},
			{"a change after that", nil, server("shop/table", "10.96.0.6", "10.1.0.6", port(80, 8080, mesh.HTTP)), []string{"uid-shop/other-1", "uid-shop/table-1"}},
		} {
			for _, uid := range tt.ask {
				c.View(uid)
			}
			if got := next(tt.facts...); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v were reported as changed, want %v", tt.what, got, tt.want)
			}
		}
		if len(c.followers.outbounds) != 1 || len(c.followers.proxies) != 1 {
			t.Errorf("%d proxies follow %d Outbounds, want one", len(c.followers.outbounds), len(c.followers.proxies))
		}
	})
}
