package localmesh

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func TestAnswerDNS(t *testing.T) {
	hosts := map[string][]netip.Addr{
		"web.shop.svc.cluster.local": {netip.MustParseAddr("198.18.0.7"), netip.MustParseAddr("2001:db8::7")},
	}
	for n := range 100 {
		hosts["many.shop.svc.cluster.local"] = append(hosts["many.shop.svc.cluster.local"], netip.AddrFrom4([4]byte{198, 18, 1, byte(n)}))
	}
	ask := func(name string, kind dnsmessage.Type) string {
		t.Helper()
		question := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
		}
		packed, err := question.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var answer dnsmessage.Message
		if err := answer.Unpack(answerDNS(packed, hosts)); err != nil {
			t.Fatal(err)
		}
		if answer.ID != 7 || !answer.Response {
			t.Errorf("%s: %+v", name, answer.Header)
		}
		if answer.Truncated {
			return fmt.Sprint("truncated ", len(answer.Answers))
		}
		var addresses []string
		for _, one := range answer.Answers {
			switch body := one.Body.(type) {
			case *dnsmessage.AResource:
				addresses = append(addresses, netip.AddrFrom4(body.A).String())
			case *dnsmessage.AAAAResource:
				addresses = append(addresses, netip.AddrFrom16(body.AAAA).String())
			}
		}
		return strings.Join(append([]string{strings.TrimPrefix(answer.RCode.String(), "RCode")}, addresses...), " ")
	}
	for _, tt := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"web.shop.svc.cluster.local.", dnsmessage.TypeA, "Success 198.18.0.7"},
		{"WEB.shop.svc.cluster.local.", dnsmessage.TypeAAAA, "Success 2001:db8::7"},
		{"web.shop.svc.cluster.local.", dnsmessage.TypeMX, "Success"},
		{"none.shop.svc.cluster.local.", dnsmessage.TypeA, "NameError"},
		{"example.org.", dnsmessage.TypeA, "NameError"},
		{"many.shop.svc.cluster.local.", dnsmessage.TypeA, "truncated 29"},
	} {
		if got := ask(tt.name, tt.kind); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.name, tt.kind, got, tt.want)
		}
	}
	for _, garbage := range []string{"", "x", strings.Repeat("\x00", 12), strings.Repeat("\xff", 600)} {
		if got := answerDNS([]byte(garbage), hosts); got != nil {
			t.Errorf("%q is answered", garbage)
		}
	}
}

// FuzzAnswerDNS sends the DNS server what any pod may send: an answer fits into the shortest
// packet, can be read, and is one to the question.
func FuzzAnswerDNS(f *testing.F) {
	const known = "web.shop.svc.cluster.local."
	hosts := map[string][]netip.Addr{strings.TrimSuffix(known, "."): {netip.MustParseAddr("198.18.0.7"), netip.MustParseAddr("2001:db8::7")}}
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeALL} {
		question := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: 7},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(known), Type: kind, Class: dnsmessage.ClassINET}},
		}
		packed, err := question.Pack()
		if err != nil {
			f.Fatal(err)
		}
		for length := range len(packed) + 1 {
			f.Add(packed[:length])
		}
	}
	f.Fuzz(func(t *testing.T, question []byte) {
		packed := answerDNS(question, hosts)
		if packed == nil {
			return
		}
		var answer dnsmessage.Message
		if err := answer.Unpack(packed); err != nil || len(packed) > maxDNS {
			t.Fatalf("an answer of %d bytes: %v", len(packed), err)
		}
		var asked dnsmessage.Parser
		header, err := asked.Start(question)
		if err != nil || header.ID != answer.ID || !answer.Response || len(answer.Questions) != 1 {
			t.Errorf("%+v is the answer to %+v, %v", answer.Header, header, err)
		}
	})
}
