package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestCheckRejects tests a version that the driver's check command rejects.
func TestCheckRejects(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.spec.Mirror.Check = []string{"sh", "-c", "echo $1 >>" + p.path("checked") + "; ls $1; if grep bad $1/code; then echo the code is bad >&2; exit 3; fi", "sh", "${MIRROR}"}
	p.serve()
	bad := r.set("code", "bad 0")
	r.serve()
	p.start()
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if _, err := os.Lstat(p.path("files")); !os.IsNotExist(err) {
		t.Errorf("a bad version is in the folder: %v", err)
	}
	good := r.set("code", "1")
	p.untilReady()
	p.until("using the good version", func() bool { return r.isAcked(good) })
	next := r.set("code", "bad 2")
	p.until("refused", func() bool { return len(r.refused()) == 2 })
	if p.read("files/code") != "1" || p.says("SIGHUP") {
		t.Error("the proxy was given what is bad")
	}
	want := []mirror.Status{
		{Version: bad, Error: "sh: exit code 3: code\nbad 0\nthe code is bad"},
		{Version: next, Error: "sh: exit code 3: code\nbad 2\nthe code is bad"},
	}
	if diff := cmp.Diff(want, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	last := r.set("code", "3")
	p.until("using the last version", func() bool { return r.isAcked(last) && p.says("code 3 <nil>") })
	if n := len(r.refused()); n != 2 {
		t.Errorf("the repository got %d reports", n)
	}
	folders := strings.Fields(p.read("checked"))
	if len(folders) != 4 {
		t.Errorf("%d versions were checked: %q", len(folders), folders)
	}
	for _, folder := range folders[:3] {
		if _, err := os.Stat(folder); !os.IsNotExist(err) && !strings.Contains(folder, good) {
			t.Errorf("%s is left behind: %v", folder, err)
		}
	}
}

// TestCheckThatHangs tests a check command that does not finish.
func TestCheckThatHangs(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.spec.Mirror.Check = []string{"sh", "-c", "echo thinking; if grep -q bad $1/code; then sleep 60 & sleep 60; fi", "sh", "${MIRROR}"}
	p.serve()
	bad := r.set("code", "bad")
	r.serve()
	p.start()
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	want := []mirror.Status{{Version: bad, Error: "sh: it did not finish within 2s: thinking"}}
	if diff := cmp.Diff(want, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	r.set("code", "1")
	p.untilReady()
}

// TestProxyRejects tests live files that the proxy rejects.
func TestProxyRejects(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	bad := r.set("code", "1", "live/a", "bad")
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if diff := cmp.Diff([]mirror.Status{{Version: bad, Error: "it says live/a=bad"}}, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	// A client without files is served the good version.
	client := mirror.Client{URL: "http://" + p.ip + ":15901/mirror"}
	p.until("serving the first version", func() bool {
		change, err := client.Poll(t.Context(), "")
		return err == nil && change.Files[1].Name == "live/a" && change.Files[1].Text == "1"
	})
	last := r.set("code", "1", "live/a", "3")
	p.until("using the last version", func() bool { return r.isAcked(last) && p.says("live live/a=3") })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, version := range r.acked {
		if version == bad {
			t.Error("the bad version was acknowledged")
		}
	}
	if n := strings.Count(p.read("journal"), "refuse"); n != 1 {
		t.Errorf("the proxy was given the bad version %d times", n)
	}
}

// TestProcessEndsOnProbation lets the proxy exit after a reload: the previous code is
// restored.
func TestProcessEndsOnProbation(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	bad := r.set("code", "crash", "live/a", "1")
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if diff := cmp.Diff([]mirror.Status{{Version: bad, Error: "the proxy exited after loading them: exit code 9"}}, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	p.untilReady()
	p.until("using the first version", func() bool { return r.isAcked(first) && p.read("files/code") == "1" })
	if got := p.metric("outrigger_agent_proxy_restarts_total"); got != "1" {
		t.Errorf("the proxy was started again %s times", got)
	}
	last := r.set("code", "3", "live/a", "3")
	p.until("using the last version", func() bool { return r.isAcked(last) && p.says("code 3 <nil>") && p.says("live live/a=3") })
}

// TestProcessKilledOnProbation kills the proxy after a reload, which need not be the code's
// fault: the previous code is restored and the new one tried again.
func TestProcessKilledOnProbation(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	next := r.set("code", "killed once", "live/a", "1")
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if diff := cmp.Diff([]mirror.Status{{Version: next, Error: "the proxy exited after loading them: signal: SIGKILL"}}, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	p.until("using the version at which it was killed", func() bool { return r.isAcked(next) && p.read("files/code") == "killed once" })
	p.untilReady()
}

// TestReloadThatFails lets the driver's reload command fail: the version is quarantined.
func TestReloadThatFails(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.spec.Reload = &agentspec.Reload{Command: []string{"sh", "-c", "if test ! -e ${GOOD} && grep bad ${MIRROR}/code; then exit 4; fi"}}
	p.env["GOOD"] = p.path("good")
	p.serve()
	first := r.set("code", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	bad := r.set("code", "bad")
	p.until("refused", func() bool { return len(r.refused()) > 0 })
	if diff := cmp.Diff([]mirror.Status{{Version: bad, Error: "reload command: sh: exit code 4: bad"}}, r.refused()[:1]); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	p.until("using the first version", func() bool { return r.isAcked(first) && p.read("files/code") == "1" })
	// The command may fail for other reasons, so the version is tried again.
	p.write("good", "")
	p.until("using the version that was refused", func() bool { return r.isAcked(bad) && p.read("files/code") == "bad" })
}

// TestNewCodeRejects lets the proxy reject a version with new code and new live files.
func TestNewCodeRejects(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	bad := r.set("code", "2", "live/a", "bad")
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if diff := cmp.Diff([]mirror.Status{{Version: bad, Error: "it says live/a=bad"}}, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	p.until("using the first version", func() bool {
		return r.isAcked(first) && p.read("files/code") == "1" && strings.Count(p.read("journal"), "SIGHUP") == 2
	})
}

// TestNewCodeRejectsSameLiveFiles tests new code that rejects live files that the previous
// code could use: it is rolled back.
func TestNewCodeRejectsSameLiveFiles(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	bad := r.set("code", "fussy", "live/a", "1")
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if diff := cmp.Diff([]mirror.Status{{Version: bad, Error: "it says live/a=1"}}, r.refused()); diff != "" {
		t.Errorf("reports to the repository (-want +got):\n%s", diff)
	}
	p.until("using the first version", func() bool { return r.isAcked(first) && p.read("files/code") == "1" })
	last := r.set("code", "3", "live/a", "3")
	p.until("using the last version", func() bool { return r.isAcked(last) && p.says("code 3 <nil>") && p.says("live live/a=3") })
}

// TestOldCodeRejects lets the process before the reload reject files for the new code.
func TestOldCodeRejects(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1", "live/a", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	next := r.set("code", "late and tolerant", "live/a", "bad")
	p.until("using the next version", func() bool { return r.isAcked(next) && p.says("live live/a=bad") })
	if !p.says("refuse live/a=bad") {
		t.Error("the program before has not rejected anything")
	}
	if reports := r.refused(); len(reports) != 0 || p.read("files/code") != "late and tolerant" {
		t.Errorf("the repository got %v", reports)
	}
}

// TestEndIsNoCrash shuts the pod down soon after a reload.
func TestEndIsNoCrash(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	r.set("code", "1")
	r.serve()
	p.start()
	p.untilReady()
	next := r.set("code", "2")
	p.until("using the next version", func() bool { return r.isAcked(next) && p.says("code 2 <nil>") })
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 || len(r.refused()) != 0 {
		t.Errorf("the agent ended with %d, and reported %v", code, r.refused())
	}
	if strings.Contains(p.log.String(), "cannot use its new files") {
		t.Error("the files are rejected because the pod ends")
	}
}

// TestFilesThatClash tests files that cannot be written; the agent continues.
func TestFilesThatClash(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	p.serve()
	first := r.set("code", "1")
	r.serve()
	p.start()
	p.until("using the first version", func() bool { return r.isAcked(first) })
	bad := r.set("code", "2", "a", "", "a/b", "")
	p.until("reported", func() bool { return len(r.refused()) > 0 && r.refused()[0].Version == bad })
	if !strings.Contains(r.refused()[0].Error, "writing version "+bad) || p.read("files/code") != "1" {
		t.Errorf("the repository got %v", r.refused())
	}
	last := r.set("code", "3")
	p.until("using the last version", func() bool { return r.isAcked(last) && p.says("code 3 <nil>") })
}
