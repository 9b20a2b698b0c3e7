package capture

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

var noDNS = []netip.Addr{}

// all has an entry of every kind, with ranges that overlap, touch and reach the last
// address.
var all = agentspec.Redirection{
	ExcludeInboundPorts:   []int{8080, 8081, 22},
	IncludeInboundPorts:   []int{8000, 8001, 8002, 8080},
	ExcludeOutboundPorts:  []int{3306, 65535},
	IncludeOutboundPorts:  []int{1, 443, 80},
	ExcludeOutboundRanges: []string{"10.0.0.0/8", "10.1.0.0/16", "11.0.0.1/8", "192.0.2.1/32", "255.0.0.0/8", "2001:db8::/32", "2001:db8:1::/48"},
	IncludeOutboundRanges: []string{"0.0.0.0/0", "fd00::/8", "ff00::/8"},
	ExcludeInterfaces:     []string{"net1", "net0", "net1"},
}

var allOptions = Options{DNS: []netip.Addr{netip.MustParseAddr("198.19.0.10"), netip.MustParseAddr("fd00::a")}}

func TestRules(t *testing.T) {
	for name, tt := range map[string]struct {
		redirection agentspec.Redirection
		options     Options
	}{
		"plain.txt":      {agentspec.Redirection{}, Options{DNS: noDNS}},
		"all.txt":        {all, allOptions},
		"translated.txt": {agentspec.Redirection{TranslateIPv6: true}, Options{DNS: noDNS}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			tt.options.NetNS = s.path()
			if err := Apply(tt.redirection, tt.options); err != nil {
				t.Fatal(err)
			}
			golden(t, name, s.dump())
		})
	}
}

// TestReplace applies rules over existing ones, like a restarted init container.
func TestReplace(t *testing.T) {
	s := newSpace(t)
	apply := func(r agentspec.Redirection, o Options) string {
		t.Helper()
		o.NetNS = s.path()
		if err := Apply(r, o); err != nil {
			t.Fatal(err)
		}
		return s.dump()
	}
	first := apply(all, allOptions)
	if diff := cmp.Diff(first, apply(all, allOptions)); diff != "" {
		t.Errorf("the same again changed the rules (-before +after):\n%s", diff)
	}
	other := apply(agentspec.Redirection{}, Options{DNS: noDNS})
	fresh := newSpace(t)
	if err := Apply(agentspec.Redirection{}, Options{NetNS: fresh.path(), DNS: noDNS}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fresh.dump(), other); diff != "" {
		t.Errorf("something of the former rules is left (-fresh +replaced):\n%s", diff)
	}
	if err := Apply(agentspec.Redirection{ExcludeInboundPorts: []int{0}}, Options{NetNS: s.path()}); err == nil {
		t.Error("port 0 is taken")
	}
	if diff := cmp.Diff(other, s.dump()); diff != "" {
		t.Errorf("a refused redirection changed the rules (-before +after):\n%s", diff)
	}
}

// TestMany writes as many ranges as fit in the environment variable.
func TestMany(t *testing.T) {
	s := newSpace(t)
	var r agentspec.Redirection
	for i := range 6000 {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0})
		r.ExcludeOutboundRanges = append(r.ExcludeOutboundRanges, netip.PrefixFrom(addr, 24).String())
	}
	if err := Apply(r, Options{NetNS: s.path(), DNS: noDNS}); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(s.dump(), "set exclude4: ")
	line, _, _ := strings.Cut(rest, "\n")
	if got := strings.Count(line, ".."); got != 6000 {
		t.Errorf("%d ranges are excluded, want 6000", got)
	}
}

func TestBadEntries(t *testing.T) {
	err := Apply(agentspec.Redirection{
		ExcludeInboundPorts: []int{80, 0}, IncludeInboundPorts: []int{65536},
		ExcludeOutboundPorts: []int{-1}, IncludeOutboundPorts: []int{1 << 40},
		ExcludeOutboundRanges: []string{"10.0.0.0/33", "10.0.0.1"}, IncludeOutboundRanges: []string{"", "::ffff:10.0.0.0/104"},
		ExcludeInterfaces: []string{"a name", strings.Repeat("e", 16), ""},
	}, Options{DNS: []netip.Addr{{}}, NetNS: "/nowhere"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"excludeInboundPorts: 0 is", "includeInboundPorts: 65536 is", "excludeOutboundPorts: -1 is", "includeOutboundPorts: 1099511627776 is",
		`excludeOutboundRanges: "10.0.0.0/33" is`, `excludeOutboundRanges: "10.0.0.1" is`, `includeOutboundRanges: "" is`, `includeOutboundRanges: "::ffff:10.0.0.0/104" is`,
		`excludeInterfaces: "a name" is`, `excludeInterfaces: "eeeeeeeeeeeeeeee" is`, `excludeInterfaces: "" is`, "DNS: an address is empty",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestNoNamespace(t *testing.T) {
	err := Apply(agentspec.Redirection{}, Options{NetNS: "/nowhere"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that /nowhere does not exist", err)
	}
	if err := Apply(agentspec.Redirection{}, Options{NetNS: "/dev/null"}); err == nil || !strings.Contains(err.Error(), "/dev/null") {
		t.Errorf("got %v, want an error about /dev/null", err)
	}
}

// TestCallingThread sets no NetNS, like the init container.
func TestCallingThread(t *testing.T) {
	s := newSpace(t)
	s.do(func() error { return Apply(agentspec.Redirection{}, Options{}) })
	if s.dump() == "" {
		t.Error("no rules in the namespace of the calling thread")
	}
}

func TestUnprivileged(t *testing.T) {
	s := newSpace(t)
	done := make(chan error)
	go func() {
		// The thread is not used again.
		runtime.LockOSThread()
		if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		// The system call applies only to the thread.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 1000, 1000, 1000); errno != 0 {
			done <- errno
			return
		}
		done <- Apply(agentspec.Redirection{}, Options{DNS: noDNS})
	}()
	if err := <-done; !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("got %v, want that NET_ADMIN is needed", err)
	}
}

// TestNoIPv6 writes the rules with IPv6 disabled.
func TestNoIPv6(t *testing.T) {
	pod, neighbour := newPair(t)
	pod.do(func() error {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err := Apply(agentspec.Redirection{TranslateIPv6: true}, Options{NetNS: pod.path(), DNS: noDNS}); err != nil {
		t.Fatal(err)
	}
	pod.listen("inbound", InboundPort)
	if got, want := neighbour.ask(appUID, "", "10.1.0.1:80"), "inbound from 10.1.0.2 to 10.1.0.1:80"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAddress6 checks that ::6 is added.
func TestAddress6(t *testing.T) {
	s := newSpace(t)
	has := func() (found bool) {
		s.do(func() error {
			if !hasIPv6() {
				t.Skip("SKIPPED: IPv6 is switched off here")
			}
			addrs, err := netlink.AddrList(nil, unix.AF_INET6)
			for _, addr := range addrs {
				found = found || addr.IPNet.String() == "::6/128"
			}
			return err
		})
		return found
	}
	for range 2 {
		if err := Apply(agentspec.Redirection{}, Options{NetNS: s.path(), DNS: noDNS}); err != nil {
			t.Fatal(err)
		}
		if !has() {
			t.Error("after Apply lo has no ::6")
		}
	}
}

// TestTranslatedRoute checks that the translated addresses are local as long as they are
// wanted, also if lo was down.
func TestTranslatedRoute(t *testing.T) {
	s := newSpace(t)
	s.do(func() error {
		if !hasIPv6() {
			t.Skip("SKIPPED: IPv6 is switched off here")
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(lo)
	})
	isLocal := func() (is bool) {
		s.do(func() error {
			routes, err := netlink.RouteGet(net.ParseIP("fdc6:e81b:1::"))
			is = err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
			return nil
		})
		return is
	}
	apply := func(r agentspec.Redirection) {
		t.Helper()
		if err := Apply(r, Options{NetNS: s.path(), DNS: noDNS}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		apply(agentspec.Redirection{TranslateIPv6: true})
		if !isLocal() {
			t.Error("with translation the addresses are not local")
		}
	}
	apply(agentspec.Redirection{})
	if isLocal() {
		t.Error("without translation the addresses are local")
	}
}

func TestNameservers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("search svc\n# nameserver 192.0.2.1\nnameserver 198.19.0.10\nnameserver\nnameserver x\nnameserver fe80::1%eth0 # comment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := nameservers(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("198.19.0.10"), netip.MustParseAddr("fe80::1%eth0")}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("name servers (-want +got):\n%s", diff)
	}
	if got, err := nameservers(file + ".not"); err != nil || len(got) > 0 {
		t.Errorf("a file that is not there: %v, %v, want none", got, err)
	}
	if _, err := nameservers(filepath.Dir(file)); err == nil {
		t.Error("a folder is read")
	}
}

// FuzzPlan searches for input that panics, or that is accepted and yields sets which the
// kernel would reject.
func FuzzPlan(f *testing.F) {
	f.Add(80, "10.0.0.0/8", "fd00::/8", "eth0")
	f.Add(0, "::/0", "255.255.255.255/32", "")
	f.Fuzz(func(t *testing.T, port int, one, two, name string) {
		p, err := newPlan(agentspec.Redirection{
			ExcludeInboundPorts: []int{port, 80, 81}, ExcludeOutboundRanges: []string{one, two, "10.2.0.0/15"}, ExcludeInterfaces: []string{name},
		}, Options{DNS: noDNS})
		if err != nil {
			return
		}
		for _, spans := range [][]span{p.inbound.exclude, p.exclude.v4, p.exclude.v6} {
			for i, s := range spans {
				if string(s.first) > string(s.last) || i > 0 && string(spans[i-1].last) >= string(s.first) {
					t.Errorf("%v overlap or are not in order", spans)
				}
			}
		}
	})
}
