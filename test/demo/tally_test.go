package demo

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTally(t *testing.T) {
	tally := newTally()
	buyer := tally.writer("bookbuyer/bookbuyer-0", "bookbuyer")
	for _, text := range []string{
		`{"path":"/buy-a-book","status":200,"store":"v1","milliseconds":1}` + "\n" + `{"path":"/buy-a-book","status":200,"sto`,
		`re":"v2","milliseconds":2}` + "\nno JSON\n" + strings.Repeat("x", 64<<10+1),
		"\n" + `{"path":"/buy-a-book","status":403}` + "\n",
	} {
		if n, err := buyer.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("Write returned %d, %v", n, err)
		}
	}
	thief := tally.writer("bookthief/bookthief-0", "bookthief")
	for _, reason := range []string{"EOF", "reset"} {
		if _, err := thief.Write([]byte(`{"path":"/buy-a-book","error":"` + reason + `"}` + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	sidecar := tally.writer("bookstore/bookstore-v1-0", "outrigger-proxy")
	if _, err := sidecar.Write([]byte(`{"downstream_peer":"spiffe://cluster.local/ns/bookbuyer/sa/bookbuyer","upstream_peer":null}` + "\n" + `{"downstream_peer":"-","upstream_peer":""}` + "\n")); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	show(&out, tally.reset())
	show(&out, tally.reset())
	want := "" +
		"      bookbuyer     3 requests: 1 × 200 from v1, 1 × 200 from v2, 1 × 403, denied by the server's sidecar\n" +
		"      bookthief     2 requests: 2 × connection closed by its own sidecar\n" +
		"      no requests\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]peer{{"bookstore", "client", "spiffe://cluster.local/ns/bookbuyer/sa/bookbuyer"}}, tally.verified(), cmp.AllowUnexported(peer{})); diff != "" {
		t.Errorf("verified (-want +got):\n%s", diff)
	}
}
