package capture

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestIncomplete applies rules where a former attempt has left some of them: an init container
// that was ended and runs again, or somebody who has deleted rules.
func TestIncomplete(t *testing.T) {
	s := newSpace(t)
	apply := func() string {
		t.Helper()
		if err := Apply(all, Options{NetNS: s.path(), DNS: allOptions.DNS}); err != nil {
			t.Fatal(err)
		}
		return s.dump()
	}
	whole := apply()
	damage := func(chain func(*nftables.Conn, *nftables.Chain), loopback bool) {
		t.Helper()
		s.do(func() error {
			conn, err := connect()
			if err != nil {
				return err
			}
			chains, err := conn.ListChains()
			if err != nil {
				return err
			}
			for _, c := range chains {
				chain(conn, c)
			}
			if err := conn.Flush(); err != nil || !loopback {
				return err
			}
			addrs, err := netlink.AddrList(nil, unix.AF_INET6)
			for _, addr := range addrs {
				if addr.IPNet.String() == "::6/128" {
					lo, err := netlink.LinkByName("lo")
					if err != nil {
						return err
					}
					return netlink.AddrDel(lo, &addr)
				}
			}
			return err
		})
	}
	flush := func(conn *nftables.Conn, c *nftables.Chain) { conn.FlushChain(c) }
	for name, harm := range map[string]func(){
		"no rules":         func() { damage(flush, false) },
		"no rules and ::6": func() { damage(flush, true) },
		"only ::6 missing": func() { damage(func(*nftables.Conn, *nftables.Chain) {}, true) },
		"some rules": func() {
			damage(func(conn *nftables.Conn, c *nftables.Chain) {
				rules, err := conn.GetRules(c.Table, c)
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range rules {
					if i%2 == 1 {
						_ = conn.DelRule(r)
					}
				}
			}, false)
		},
	} {
		harm()
		if strings.Contains(name, "rules") && s.dump() == whole {
			t.Fatalf("%s: nothing was damaged", name)
		}
		if diff := cmp.Diff(whole, apply()); diff != "" {
			t.Errorf("%s: the rules are not the same again (-before +after):\n%s", name, diff)
		}
	}
}

// TestUserNamespace writes the rules as in a pod with hostUsers: false, whose network belongs to
// a user namespace: as its root, who has no rights outside.
func TestUserNamespace(t *testing.T) {
	const inside = "CAPTURE_IN_USER_NAMESPACE"
	if os.Getenv(inside) != "" {
		if err := Apply(all, Options{DNS: allOptions.DNS, Warn: func(err error) { t.Logf("a warning: %v", err) }}); err != nil {
			t.Fatal(err)
		}
		there, err := Present(Options{})
		if err != nil || !there {
			t.Fatalf("the table is present: %t, %v", there, err)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestUserNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65536, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65536, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: mapping users needs root")
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("SKIPPED: user namespaces are not allowed here: %v", err)
	}
	if err != nil {
		t.Errorf("as root of a user namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}
