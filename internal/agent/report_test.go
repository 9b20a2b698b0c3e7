package agent

import (
	"os"
	"strings"
	"testing"
)

// TestFailingProxyIsReported runs a proxy that exits repeatedly and finally stays up. The
// controller is unavailable at first.
func TestFailingProxyIsReported(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Command = []string{"/bin/sh", "-c", `test -e ${GOOD} && exec sleep 600
echo "[critical] too many\tinotify \033[31minstances" >&2
for i in 1 2 3 4 5 6 7 8 9; do echo "#$i: [0x55d1a2b3c4d5]" >&2; done
kill -ABRT $$`}
	p.spec.ReadyURL = ""
	p.env["GOOD"] = p.path("good")
	p.serve()
	p.start()
	p.until("a certificate", func() bool { _, err := p.identity(); return err == nil })
	p.service.stop()
	p.until("many starts", func() bool { return p.number("outrigger_agent_proxy_restarts_total") > 4 })
	p.serve()
	p.until("reported", func() bool { r, _ := p.service.lastReport(); return r.GetFailing() })
	r, n := p.service.lastReport()
	if r.GetHow() != "signal: SIGABRT" || r.GetStarts() < 3 || !strings.Contains(r.GetLastWords(), "[critical] too many inotify [31minstances") || strings.ContainsAny(r.GetLastWords(), "\n\t\x1b") {
		t.Errorf("the report is %v", r)
	}
	p.until("repeated", func() bool { _, now := p.service.lastReport(); return now > n })
	if log := p.log.String(); !strings.Contains(log, "[critical] too many") {
		t.Error("the proxy's own words are not in the log")
	}
	p.write("good", "")
	p.until("over", func() bool { r, _ := p.service.lastReport(); return r != nil && !r.GetFailing() })
}

// TestMissingProgramIsReported uses an image without the proxy's program.
func TestMissingProgramIsReported(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Command = []string{"no-such-proxy"}
	p.serve()
	p.start()
	p.until("reported", func() bool {
		r, _ := p.service.lastReport()
		return r.GetFailing() && strings.Contains(r.GetHow(), `"no-such-proxy": executable file not found`)
	})
}

// TestMissingCheckIsReported uses the proxy's program, which is missing at first, as the
// check: no version is refused for that, and the controller learns why the proxy has none.
func TestMissingCheckIsReported(t *testing.T) {
	t.Parallel()
	p, r := followed(t)
	program := p.path("proxy-that-checks")
	p.spec.Mirror.Check = []string{program}
	p.serve()
	first := r.set("code", "1")
	r.serve()
	p.start()
	p.until("reported", func() bool {
		report, _ := p.service.lastReport()
		return report.GetFailing() && strings.Contains(report.GetHow(), program)
	})
	p.until("reported", func() bool { return len(r.refused()) > 0 })
	if report := r.refused()[0]; report.Version != first || !strings.Contains(report.Error, "checking version "+first) {
		t.Errorf("the repository got %v", report)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.until("using the version", func() bool { return r.isAcked(first) && p.says("code 1 <nil>") })
	p.until("over", func() bool { report, _ := p.service.lastReport(); return report != nil && !report.GetFailing() })
}
