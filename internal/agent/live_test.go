package agent

import (
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestLiveIsForThePod asks from where the network's requests come.
func TestLiveIsForThePod(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })

	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}}
	foreign := mirror.Client{URL: "http://" + p.ip + ":15901/mirror", HTTP: &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}}
	change, err := foreign.Poll(t.Context(), "")
	if answer, ok := err.(*mirror.Error); !ok || answer.Code != 403 {
		t.Errorf("a request through the proxy gets %v, %v", change, err)
	}
	if err := foreign.Report(t.Context(), mirror.Status{Version: first, Error: "no"}); err == nil {
		t.Error("a report through the proxy is taken")
	}

	own := mirror.Client{URL: foreign.URL}
	change, err = own.Poll(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range change.Files {
		names = append(names, f.Name)
	}
	if diff := cmp.Diff([]string{"identity", "live/a"}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	secret := strings.Split(p.read("identity/key.pem"), "\n")[1]
	if text := change.Files[0].Text; len(text) != 33 || strings.Contains(text, secret) {
		t.Errorf("identity says %q", text)
	}
	if status, _ := p.ask("PUT", "/mirror"); status != 405 {
		t.Errorf("PUT is answered with %d", status)
	}
}

// TestLiveIsDecidedByTheProxy has a process of another user ask and refuse.
func TestLiveIsDecidedByTheProxy(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	t.Parallel()
	// Nobody but the stranger asks.
	p := newPod(t)
	r := mirrored(p)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.untilReady()
	url := "http://" + p.ip + ":15901/mirror"
	client := mirror.Client{URL: url, Wait: -1}
	served, err := client.Poll(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	curl := func(args ...string) string {
		cmd := exec.Command("curl", append([]string{"-s", "-o", os.DevNull, "-w", "%{http_code}", url}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := curl(); got != "200" {
		t.Errorf("another user's request is answered with %s", got)
	}
	if got := curl("-H", `If-None-Match: "`+served.Version+`"`); got != "304" {
		t.Errorf("another user's second request is answered with %s", got)
	}
	if got := curl("-H", "Content-Type: "+mirror.StatusType, "-d", `{"version":"`+served.Version+`","error":"no"}`); got != "403" {
		t.Errorf("another user's report is answered with %s", got)
	}
	next := r.set("code", "1", "live/a", "2")
	p.until("asking with what nobody uses", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.asked > 1 })
	if r.isAcked(first) || len(r.refused()) != 0 {
		t.Error("a stranger decided about the proxy's files")
	}
	p.until("serving the next version", func() bool {
		served, err = client.Poll(t.Context(), "")
		return err == nil && served.Files[1].Text == "2"
	})
	if _, err := client.Poll(t.Context(), served.Version); err != nil {
		t.Fatal(err)
	}
	p.until("using the next version", func() bool { return r.isAcked(next) })
}

// TestLiveTellsOfTheIdentity wants the file to change when the identity files do.
func TestLiveTellsOfTheIdentity(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.untilReady()
	client := mirror.Client{URL: "http://" + p.ip + ":15901/mirror"}
	before, err := client.Poll(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	p.write("ca.crt", string(bundleOf(p.ca, newAuthority(t, "next"))))
	after, err := client.Poll(t.Context(), before.Version)
	if err != nil || after == nil || len(after.Files) != 1 || after.Files[0].Name != identityName || after.Files[0].Text == before.Files[0].Text {
		t.Fatalf("the change is %+v, %v", after, err)
	}
	next := r.set("code", "2", "live/a", "1")
	p.until("using the next version", func() bool { return r.isAcked(next) && p.says("code 2 <nil>") })
	if n := strings.Count(p.read("journal"), "SIGHUP"); n != 1 {
		t.Errorf("a proxy that follows the identity was reloaded %d times for one change of other files", n)
	}
}

// TestLivePolls has more requests wait than there may be; the others do not.
func TestLivePolls(t *testing.T) {
	l := newLive("live/")
	if err := l.serve(mirror.NewSet(), "mark"); err != nil {
		t.Fatal(err)
	}
	for range maxPolls {
		l.polls <- struct{}{}
	}
	_, version, _ := l.feed.Current()
	server := &http.Server{Handler: l}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Close()
	client := mirror.Client{URL: "http://" + listener.Addr().String() + "/mirror"}
	if change, err := client.Poll(t.Context(), version); change != nil || err != nil {
		t.Errorf("one too many gets %v, %v", change, err)
	}
}

const tcpTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:3E1D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:3E1D 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1500        0 2 1 0 20 4 30 10 -1
   2: 0100007F:C350 0100007F:3E1D 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 20 4 30 10 -1
`

const tcp6Table = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:3E1D 01 00000000:00000000 00:00000000 00000000  1001        0 4 1 0 20 4 30 10 -1
   1: 00000000000000000000000001000000:C350 00000000000000000000000001000000:3E1D 01 00000000:00000000 00:00000000 00000000  1002        0 4 1 0 20 4 30 10 -1
`

func TestUserOf(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the tables are those of a little-endian machine")
	}
	for _, tt := range []struct {
		table, local, remote string
		uid                  int
		ok                   bool
	}{
		{tcpTable, "127.0.0.1:50000", "127.0.0.1:15901", 1000, true},
		{tcpTable, "127.0.0.1:15901", "127.0.0.1:50000", 1500, true},
		{tcpTable, "[::ffff:127.0.0.1]:50000", "127.0.0.1:15901", 1000, true},
		{tcpTable, "127.0.0.2:50000", "127.0.0.1:15901", 0, false},
		{tcpTable, "127.0.0.1:50001", "127.0.0.1:15901", 0, false},
		{tcp6Table, "127.0.0.1:50000", "127.0.0.1:15901", 1001, true},
		{tcp6Table, "[::1]:50000", "[::1]:15901", 1002, true},
		{"", "127.0.0.1:50000", "127.0.0.1:15901", 0, false},
	} {
		uid, ok := userOf(strings.NewReader(tt.table), netip.MustParseAddrPort(tt.local), netip.MustParseAddrPort(tt.remote))
		if uid != tt.uid || ok != tt.ok {
			t.Errorf("%s to %s is user %d, %t, want %d, %t", tt.local, tt.remote, uid, ok, tt.uid, tt.ok)
		}
	}
}

func FuzzUserOf(f *testing.F) {
	f.Add(tcpTable)
	f.Add(tcp6Table)
	f.Add("a 0100007F:C350 0100007F:3E1D d e f g -1")
	local, remote := netip.MustParseAddrPort("127.0.0.1:50000"), netip.MustParseAddrPort("127.0.0.1:15901")
	f.Fuzz(func(t *testing.T, table string) {
		if uid, ok := userOf(strings.NewReader(table), local, remote); uid < 0 || !ok && uid != 0 {
			t.Errorf("user %d, %t", uid, ok)
		}
	})
}
