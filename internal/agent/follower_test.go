package agent

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// followed returns a pod whose proxy follows live files and loads code.
func followed(t testing.TB) (*pod, *repositoryServer) {
	t.Helper()
	p := newPod(t, "-follow", "http://${POD_IP}:15901/mirror")
	p.spec.Command = append(p.spec.Command, "-code", p.path("files/code"))
	return p, mirrored(p)
}

// number returns a metric's value, 0 if there is none.
func (p *pod) number(metric string) float64 {
	n, _ := strconv.ParseFloat(p.metric(metric), 64)
	return n
}

// says reports whether the proxy's journal contains a line.
func (p *pod) says(line string) bool { return strings.Contains("\n"+p.read("journal"), "\n"+line+"\n") }

func TestMirror(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	p.start()
	p.until("waiting for files", func() bool {
		_, text := p.ask("GET", "/ready")
		return text == "the proxy's files have not arrived from the repository yet" && p.number("outrigger_agent_mirror_failures_total") >= 3
	})
	if p.read("journal") != "" {
		t.Error("the proxy has been started without its files")
	}
	first := r.set("code", "1", "live/a", "1", "live/deep/b", "1")
	r.serve()
	p.untilReady()
	p.until("using the first version", func() bool { return r.isAcked(first) && p.says("live live/a=1,live/deep/b=1") })
	if !p.says("code 1 <nil>") {
		t.Error("the proxy did not find its code")
	}

	second := r.set("code", "1", "live/a", "2")
	p.until("using the second version", func() bool { return r.isAcked(second) && p.says("live live/a=2") })
	p.until("keeping it", func() bool { return p.read("files/live/a") == "2" && p.read("files/live/deep/b") == "" })
	if p.says("SIGHUP") {
		t.Error("the proxy was reloaded for live files")
	}

	third := r.set("code", "3", "live/a", "2")
	p.until("using the third version", func() bool { return r.isAcked(third) && p.says("code 3 <nil>") })
	if n := strings.Count(p.read("journal"), "SIGHUP"); n != 1 {
		t.Errorf("the proxy was signaled %d times", n)
	}
}

// TestReloadOfAProxyThatStarts changes files while the proxy cannot be reloaded yet.
func TestReloadOfAProxyThatStarts(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.spec.Command = append([]string{"sh", "-c", `echo begin >>"$0"; sleep 0.5; exec "$@"`, p.path("begun")}, p.spec.Command...)
	p.serve()
	r.set("code", "1")
	r.serve()
	p.start()
	p.until("begun", func() bool { return p.read("begun") != "" })
	next := r.set("code", "2")
	p.until("using the next version", func() bool { return r.isAcked(next) && p.says("code 2 <nil>") })
	if n := p.number("outrigger_agent_proxy_restarts_total"); n != 0 || len(r.refused()) != 0 {
		t.Errorf("the proxy was started again %v times, and %v was refused", n, r.refused())
	}
}

// TestReloadForTheIdentity checks that a proxy without live files is reloaded after a
// renewal.
func TestReloadForTheIdentity(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	r := mirrored(p)
	p.spec.Mirror.Live = ""
	p.serve()
	first := r.set("code", "1")
	r.serve()
	p.start()
	p.untilReady()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	p.write("ca.crt", string(bundleOf(p.ca, newAuthority(t, "next"))))
	p.until("reloaded", func() bool { return p.says("SIGHUP") })
}

// TestMirrorIsKept restarts the agent without a controller: the proxy starts with the last
// good files.
func TestMirrorIsKept(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.untilReady()
	last := r.set("code", "1", "live/a", "2")
	p.until("keeping the last version", func() bool { return r.isAcked(last) && p.read("files/live/a") == "2" })
	p.service.stop()
	r.stop()
	if !p.isReady() {
		t.Error("not ready without the controller")
	}
	p.kill()

	p.write("journal", "")
	p.start()
	p.untilReady()
	p.until("following the last version", func() bool { return p.says("live live/a=2") && p.says("code 1 <nil>") })
	p.kill()

	// Files modified on the disk must not be used.
	p.write("journal", "")
	p.overwrite("files/live/a", "tampered")
	p.start()
	p.until("logged", func() bool { return strings.Contains(p.log.String(), "the files of an earlier start are invalid") })
	p.until("waiting", func() bool {
		_, text := p.ask("GET", "/ready")
		return text == "the proxy's files have not arrived from the repository yet"
	})
	if p.read("journal") != "" {
		t.Error("the proxy has been started with what was changed")
	}
	r.serve()
	p.untilReady()
	p.until("using the version", func() bool { return r.isAcked(last) && p.read("files/live/a") == "2" })
	left, err := filepath.Glob(p.path(".files-*"))
	if err != nil || len(left) > 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// overwrite changes a file in place.
func (p *pod) overwrite(name, content string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// kill kills the agent, like a crash of the container.
func (p *pod) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	p.exit()
	p.until("the proxy dead", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.proxyPID()))
		return err != nil || strings.Contains(string(text), ") Z ")
	})
}

// TestRepositoryComesBack checks that the agent follows a repository at once after an
// outage.
func TestRepositoryComesBack(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.untilReady()
	r.stop()
	p.until("failing", func() bool { return p.number("outrigger_agent_mirror_failures_total") >= 5 })
	if !p.isReady() {
		t.Error("not ready while the repository is away")
	}
	if n := strings.Count(p.log.String(), `"kind":"repository"`); n != 1 {
		t.Errorf("one kind of failure is logged %d times", n)
	}
	next := r.set("code", "2", "live/a", "2")
	r.serve()
	p.until("using the next version", func() bool { return r.isAcked(next) && p.says("live live/a=2") && p.says("code 2 <nil>") })
}

// TestRepositoryIsVerified checks that a server that is not the repository gets no
// certificate and that its files are not used.
func TestRepositoryIsVerified(t *testing.T) {
	for name, prepare := range map[string]func(*pod, *repositoryServer){
		"unknown root": func(p *pod, r *repositoryServer) { r.root = newAuthority(t, "unknown") },
		"another host": func(p *pod, r *repositoryServer) { r.host = "outrigger-controller.elsewhere.svc" },
		// The trust bundle verifies every pod's certificate too.
		"a pod": func(p *pod, r *repositoryServer) { r.host = podIdentity.DNSName() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, r := followed(t)
			prepare(p, r)
			p.serve()
			r.set("code", "1")
			r.serve()
			p.start()
			p.until("failing", func() bool { return p.number("outrigger_agent_mirror_failures_total") >= 3 })
			if n := r.requests(); n != 0 || p.read("journal") != "" {
				t.Errorf("%d requests were made, and the journal says %q", n, p.read("journal"))
			}
			if !strings.Contains(p.log.String(), `"kind":"repository unverified"`) {
				t.Error("the log does not say why")
			}
			// Its root arrives with an early renewal.
			if name == "unknown root" {
				p.service.set(func() { p.service.bundle = append(p.service.bundle, bundleOf(r.root)...) })
				p.untilReady()
			}
		})
	}
}

// TestRepositorySeesTheCertificate checks that each handshake presents the current
// certificate.
func TestRepositorySeesTheCertificate(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.service.life = 2 * time.Second
	p.serve()
	r.set("code", "1")
	r.serve()
	p.start()
	p.untilReady()
	before := p.mustIdentity().leaf
	seen := func(cert *x509.Certificate) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.peers, cert.Equal)
	}
	p.until("shown", func() bool { return seen(before) })
	p.until("showing another", func() bool { now, err := p.identity(); return err == nil && !now.leaf.Equal(before) && seen(now.leaf) })
	if n := p.number("outrigger_agent_mirror_failures_total"); n != 0 {
		t.Errorf("%v requests failed", n)
	}
}

// TestMirrorIsSoon measures the time from a change in the repository to the proxy's
// acknowledgement.
func TestMirrorIsSoon(t *testing.T) {
	p, r := followed(t)
	p.serve()
	files := []string{"code", "1"}
	for i := range 300 {
		files = append(files, fmt.Sprintf("live/%03d", i), "text")
	}
	r.set(files...)
	r.serve()
	p.start()
	p.untilReady()
	var client = mirror.Client{URL: "http://" + p.ip + ":15901/mirror"}
	first, err := client.Poll(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	have := first.Version
	var took []time.Duration
	for i := range 20 {
		p.until("acknowledged", func() bool { _, version, _ := r.feed.Current(); return r.isAcked(version) })
		files[3] = fmt.Sprint("changed ", i)
		type answer struct {
			change *mirror.Change
			err    error
			at     time.Time
		}
		answers := make(chan answer)
		go func() {
			change, err := client.Poll(t.Context(), have)
			answers <- answer{change, err, time.Now()}
		}()
		began := time.Now()
		r.set(files...)
		a := <-answers
		if a.err != nil || a.change == nil || len(a.change.Files) != 1 || a.change.Files[0].Text != files[3] {
			t.Fatalf("change %d: %+v, %v", i, a.change, a.err)
		}
		have = a.change.Version
		took = append(took, a.at.Sub(began))
	}
	slices.Sort(took)
	t.Logf("median %v, most %v", took[len(took)/2], took[len(took)-1])
	// On an idle machine it takes 3 ms.
	if median := took[len(took)/2]; median > 200*time.Millisecond {
		t.Errorf("a change takes %v to the proxy", median)
	}
}
