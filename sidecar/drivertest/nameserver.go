package drivertest

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// NameAnswer is how a NameServer answers a question for the addresses of a name. The zero
// value says that the name exists and has no address.
type NameAnswer struct {
	// Silent means that there is no answer.
	Silent bool
	// Code is the answer's response code, such as 2 (SERVFAIL) or 3 (NXDOMAIN).
	Code byte
	// Address is the name's address, for questions about its family.
	Address netip.Addr
}

// ServeNames answers the DNS questions that arrive at conn, until the test ends. The function
// gets the name in lower case without its final dot, and may be called at any time until then. No
// answer may be cached: the lifetime of addresses and of missing names is 0.
func ServeNames(t testing.TB, conn net.PacketConn, answer func(name string) NameAnswer) {
	t.Helper()
	ended := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		buffer := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if packet := answerName(buffer[:n], answer); packet != nil {
				_, _ = conn.WriteTo(packet, from)
			}
		}
	}()
}

// answerName returns the answer to a question, or nil for none.
func answerName(question []byte, answer func(string) NameAnswer) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(question)
	if err != nil {
		return nil
	}
	asked, err := parser.Question()
	if err != nil {
		return nil
	}
	a := answer(strings.ToLower(strings.TrimSuffix(asked.Name.String(), ".")))
	if a.Silent {
		return nil
	}
	message := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true, RCode: dnsmessage.RCode(a.Code),
		},
		Questions: []dnsmessage.Question{asked},
	}
	// A record may be used for 0 seconds.
	record := dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET}
	address := a.Address.Unmap()
	switch {
	case address.Is4() && asked.Type == dnsmessage.TypeA:
		message.Answers = []dnsmessage.Resource{{Header: record, Body: &dnsmessage.AResource{A: address.As4()}}}
	case address.Is6() && asked.Type == dnsmessage.TypeAAAA:
		message.Answers = []dnsmessage.Resource{{Header: record, Body: &dnsmessage.AAAAResource{AAAA: address.As16()}}}
	default:
		root := dnsmessage.MustNewName(".")
		message.Authorities = []dnsmessage.Resource{{Header: record, Body: &dnsmessage.SOAResource{NS: root, MBox: root}}}
	}
	packet, err := message.Pack()
	if err != nil {
		return nil
	}
	return packet
}
