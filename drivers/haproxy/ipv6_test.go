package haproxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// sixFixture is the outbound fixture of a pod with the addresses, with a service and endpoints
// of both families.
func sixFixture(own ...string) *fixture {
	f := outboundFixture()
	f.inbound.Ports = []mesh.InboundPort{{Port: 8080, Protocol: mesh.HTTP, Access: anyone}}
	f.proxy.Addresses = nil
	for _, text := range own {
		f.proxy.Addresses = append(f.proxy.Addresses, netip.MustParseAddr(text))
	}
	six := backend(servicePort("six", 80), mesh.HTTP, store, "10.244.0.31:8080", "[fd00:244::32]:8080")
	six.Endpoints[0].Addresses = append(six.Endpoints[0].Addresses, netip.MustParseAddr("fd00:244::31"))
	d := f.service(servicePort("six", 80), mesh.HTTP, "10.96.0.31", six)
	d.Addresses = append(d.Addresses, netip.MustParseAddr("fd00:96::31"))
	return f
}

// TestAddressFamilies holds that endpoints are called by the pod's own family, IPv4 if it has
// both, and that a pod without IPv6 does not listen on it: the kernel may not have it.
func TestAddressFamilies(t *testing.T) {
	const four, six, listens, resolves = " 10.244.0.31:8080 ", " [fd00:244::31]:8080 ", "[::]:1500", "resolve-prefer ipv6"
	for _, tt := range []struct {
		own        []string
		with, none []string
	}{
		{[]string{"10.0.0.1"}, []string{four}, []string{six, listens, resolves}},
		{[]string{"10.0.0.1", "fd00::1"}, []string{four, listens, "ipv6(fd00::1)"}, []string{six, resolves}},
		{[]string{"fd00::1"}, []string{six, listens, resolves}, []string{four}},
		{nil, []string{four}, []string{six, listens, resolves}},
	} {
		files, err := Driver{}.Translate(sixFixture(tt.own...).view())
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, f := range files {
			all = append(all, f.Content...)
		}
		config := string(all)
		for _, want := range append(tt.with, " [fd00:244::32]:8080 ", "\nfd00:96::31:80 ") {
			if !strings.Contains(config, want) {
				t.Errorf("the configuration of a pod with %v has no %q", tt.own, want)
			}
		}
		for _, bad := range tt.none {
			if strings.Contains(config, bad) {
				t.Errorf("the configuration of a pod with %v has %q", tt.own, bad)
			}
		}
	}
}

// TestTranslatedAddresses sends the addresses of redirected IPv6 connections to a real HAProxy.
// It refuses those that the kernel has not translated, and those that contain an IPv4 address,
// which a rule for that address would match.
func TestTranslatedAddresses(t *testing.T) {
	f := newFixture(store)
	f.proxy.Addresses = append(f.proxy.Addresses, netip.MustParseAddr("fe80::1"))
	f.inbound.TLS, f.egress.AllowAll = mesh.Permissive, true
	f.inbound.Ports = []mesh.InboundPort{{Port: 8080, Protocol: mesh.TCP, Access: anyone}}
	dir := t.TempDir()
	newAuthority(t).writeTo(dir, store)
	r := start(t, dir, f.view()).awaitReady()
	connect := func(listener uint16, from, to string, port int) {
		t.Helper()
		conn, err := net.Dial("tcp", local(listener))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PROXY TCP6 %s %s 4321 %d\r\nhello", from, to, port)
		// Every connection ends: there is no route to an address of this kind.
		_, _ = io.ReadAll(conn)
	}
	const pod, far = "fdc6:e81b::1:1f90:0", "fdc6:e81b::2:7:1bb:0"
	connect(r.inbound, "2002:a00:1::9", pod, 15003)
	connect(r.inbound, "::a00:9", pod, 15003)
	connect(r.inbound, "fd01::9", "fe80::1", 15003)
	connect(r.outbound, "fdc6:e81b:2002:a00::", far, 15001)
	connect(r.outbound, "fdc6:e81b::", far, 15001)
	connect(r.outbound, "fe80::1", "2001:db8::9", 15001)
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "downstream_remote") {
			t.Errorf("a connection is accepted that must be refused: %s", line)
		}
	}
	connect(r.inbound, "fd01::9", pod, 15003)
	r.awaitLog(`"downstream_remote":"fd01::9:4321"`)
	r.awaitLog(`"upstream_host":"fe80::1:8080"`)
	connect(r.outbound, "fdc6:e81b:fe80::", far, 15001)
	r.awaitLog(`"downstream_remote":"fe80::1:4321"`)
	r.awaitLog(`"upstream_host":"fe80::2:7:443"`)
}
