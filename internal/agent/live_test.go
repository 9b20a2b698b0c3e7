package agent

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/agent/rollout"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestLiveIsForThePod sends requests from the address that the network's requests come from.
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

// TestLiveIsDecidedByTheProxy lets another user's process request and reject files.
func TestLiveIsDecidedByTheProxy(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	t.Parallel()
	// Only another user's process requests files.
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
		t.Error("another user's process decided about the proxy's files")
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

// TestLiveIdentity checks that the file changes with the identity files.
func TestLiveIdentity(t *testing.T) {
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
	if err != nil || after == nil || len(after.Files) != 1 || after.Files[0].Name != rollout.IdentityName || after.Files[0].Text == before.Files[0].Text {
		t.Fatalf("the change is %+v, %v", after, err)
	}
	next := r.set("code", "2", "live/a", "1")
	p.until("using the next version", func() bool { return r.isAcked(next) && p.says("code 2 <nil>") })
	if n := strings.Count(p.read("journal"), "SIGHUP"); n != 1 {
		t.Errorf("a proxy that follows the identity was reloaded %d times for one change of other files", n)
	}
}
