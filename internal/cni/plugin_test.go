package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestMain makes this program the plug-in when a test runs it as a runtime does.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(Main(nil))
	}
	os.Exit(m.Run())
}

// newNetNS returns the path of a network namespace with a default route, or skips the test.
func newNetNS(t *testing.T) string {
	t.Helper()
	var file *os.File
	made := make(chan error, 1)
	go func() {
		// The thread is in the new namespace, and must end with the goroutine.
		runtime.LockOSThread()
		made <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			var err error
			if file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
				return err
			}
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}); err != nil {
				return err
			}
			for _, name := range []string{"lo", "eth0", "peer"} {
				link, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				if err := netlink.LinkSetUp(link); err != nil {
					return err
				}
			}
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr("10.1.0.1/24")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(eth0, addr); err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP("10.1.0.2")})
		}()
	}()
	if err := <-made; errors.Is(err, os.ErrPermission) {
		t.Skipf("SKIPPED: network namespaces need root or CAP_SYS_ADMIN: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
}

// removeRules removes the rules in the namespace of the calling thread.
func removeRules() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.DelTable(&nftables.Table{Name: capture.TableName, Family: nftables.TableFamilyINet})
	return conn.Flush()
}

// in calls f on a thread in the namespace.
func in(t *testing.T, netns string, f func() error) error {
	t.Helper()
	file, err := os.Open(netns)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// reaches returns the server that answers a connection to a nonexistent address: the proxy,
// if the pod's traffic is redirected.
func reaches(t *testing.T, netns string) (proxy bool) {
	t.Helper()
	err := in(t, netns, func() error {
		listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", capture.OutboundPort))
		if err != nil {
			return err
		}
		defer listener.Close()
		conn, err := net.DialTimeout("tcp4", "192.0.2.1:80", 300*time.Millisecond)
		if err != nil {
			return nil
		}
		proxy = true
		return conn.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return proxy
}

const prevResult = `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}], "ips": [{"address": "10.1.0.1/24", "interface": 0}], "other": [1]}`

// ask runs the plug-in as a container runtime does.
func ask(t *testing.T, command, netns string, runtimeConfig map[string]any) (string, int) {
	t.Helper()
	stdin := map[string]any{"cniVersion": "1.0.0", "name": "pods", "type": Name, "prevResult": json.RawMessage(prevResult)}
	if runtimeConfig != nil {
		stdin["runtimeConfig"] = runtimeConfig
	}
	text, err := json.Marshal(stdin)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=a", "CNI_NETNS="+netns, "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart", "CNI_NETNS_OVERRIDE=1")
	cmd.Stdin = bytes.NewReader(text)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if stderr.Len() > 0 {
		t.Logf("%s: %s", command, stderr.String())
	}
	return stdout.String(), cmd.ProcessState.ExitCode()
}

func annotated(redirection string) map[string]any {
	return map[string]any{
		podAnnotations: map[string]string{agentspec.RedirectionAnnotation: redirection, "a": "b"},
		"dns":          map[string]any{"servers": []string{"10.96.0.10"}},
	}
}

// TestPlugin runs the plug-in by CNI's protocol, on a pod's network namespace.
func TestPlugin(t *testing.T) {
	wantResult := func(t *testing.T, out string) {
		t.Helper()
		if !same([]byte(out), []byte(prevResult)) {
			t.Errorf("it prints %s, want the result before it:\n%s", out, prevResult)
		}
	}
	for name, config := range map[string]map[string]any{
		"a runtime that passes no annotations": nil,
		"a pod outside the mesh":               {podAnnotations: map[string]string{"a": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			netns := newNetNS(t)
			out, code := ask(t, "ADD", netns, config)
			if code != 0 || reaches(t, netns) {
				t.Errorf("exit code %d, redirected %v: %s", code, reaches(t, netns), out)
			}
			wantResult(t, out)
			if out, code := ask(t, "CHECK", netns, config); code != 0 {
				t.Errorf("CHECK: exit code %d: %s", code, out)
			}
		})
	}
	t.Run("a pod of the mesh", func(t *testing.T) {
		netns := newNetNS(t)
		if out, code := ask(t, "CHECK", netns, annotated(`{}`)); code == 0 || !strings.Contains(out, "is gone") {
			t.Errorf("CHECK before ADD: exit code %d: %s", code, out)
		}
		for range 2 {
			out, code := ask(t, "ADD", netns, annotated(`{"excludeOutboundPorts":[81]}`))
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, out)
			}
			wantResult(t, out)
		}
		if !reaches(t, netns) {
			t.Error("its traffic is not redirected")
		}
		var there bool
		if err := in(t, netns, func() (err error) { there, err = capture.Redirected(); return err }); err != nil || !there {
			t.Errorf("the pod sees no rules: %v", err)
		}
		for _, command := range []string{"CHECK", "DEL"} {
			if out, code := ask(t, command, netns, annotated(`{}`)); code != 0 {
				t.Errorf("%s: exit code %d: %s", command, code, out)
			}
		}
	})
	t.Run("excluded", func(t *testing.T) {
		netns := newNetNS(t)
		if out, code := ask(t, "ADD", netns, annotated(`{"excludeOutboundPorts":[80]}`)); code != 0 || reaches(t, netns) {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
	for name, text := range map[string]string{
		"an unknown field": `{"excludeEverything":true}`,
		"no JSON":          `yes`,
		"two values":       `{}{}`,
		"no port":          `{"excludeInboundPorts":[0]}`,
	} {
		t.Run(name, func(t *testing.T) {
			netns := newNetNS(t)
			out, code := ask(t, "ADD", netns, annotated(text))
			if code == 0 || !strings.Contains(out, "redirecting the pod's traffic for Outrigger") {
				t.Errorf("exit code %d: %s", code, out)
			}
		})
	}
	t.Run("version", func(t *testing.T) {
		if out, code := ask(t, "VERSION", "", nil); code != 0 || !strings.Contains(out, "1.1.0") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
}

// TestNoRules checks that a pod can detect missing rules, whether the proxy listens or not.
func TestNoRules(t *testing.T) {
	netns := newNetNS(t)
	err := in(t, netns, func() error {
		for _, address := range []string{"", "0.0.0.0:15001"} {
			if address != "" {
				listener, err := net.Listen("tcp4", address)
				if err != nil {
					return err
				}
				defer listener.Close()
			}
			if there, err := capture.Redirected(); err != nil || there {
				return fmt.Errorf("with a listener on %q it says %v, %w", address, there, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRepair redirects a pod whose network was created without the plug-in, by the
// runtime's records in the formats of several versions of libcni.
func TestRepair(t *testing.T) {
	for name, form := range map[string]string{
		"since 1.1": `{"kind": "cniCacheV1", "netns": %[1]q, "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "cart"]], "capabilityArgs": {"dns": {"Servers": ["10.96.0.10"]}, %[2]q: %[3]s}}`,
		"before":    `{"kind": "cniCacheV1", "result": {"interfaces": [{"name": "veth"}, {"name": "eth0", "sandbox": %[1]q}]}, "capabilityArgs": {%[2]q: %[3]s}}`,
	} {
		t.Run(name, func(t *testing.T) {
			meshed, other := newNetNS(t), newNetNS(t)
			n := newNode(t, nil)
			n.repairAll()
			if err := os.Mkdir(n.resultsDir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(n.resultsDir, "pods-a-eth0"), fmt.Sprintf(form, meshed, podAnnotations, fmt.Sprintf("{%q: %q}", agentspec.RedirectionAnnotation, "{}")))
			write(t, filepath.Join(n.resultsDir, "pods-b-eth0"), fmt.Sprintf(form, other, podAnnotations, `{"a": "b"}`))
			write(t, filepath.Join(n.resultsDir, "pods-c-eth0"), fmt.Sprintf(form, "/gone", podAnnotations, fmt.Sprintf("{%q: %q}", agentspec.RedirectionAnnotation, "{}")))
			write(t, filepath.Join(n.resultsDir, "pods-d-eth0"), "half a no")
			n.repairAll()
			if !reaches(t, meshed) {
				t.Error("the pod of the mesh is not redirected")
			}
			if reaches(t, other) {
				t.Error("the other pod is redirected")
			}
			if len(n.logged) != 1 || n.logged[repairing+"pods-d-eth0"] == "" {
				t.Errorf("the problems are %q", n.logged)
			}
			// A repaired pod is not checked again.
			if err := in(t, meshed, removeRules); err != nil {
				t.Fatal(err)
			}
			n.repairAll()
			if reaches(t, meshed) {
				t.Error("a pod was repaired that had been redirected before")
			}
			// A new record of the same name is another container's.
			os.Remove(filepath.Join(n.resultsDir, "pods-d-eth0"))
			n.repairAll()
			if len(n.logged) != 0 {
				t.Errorf("the problems are still %q", n.logged)
			}
		})
	}
}
