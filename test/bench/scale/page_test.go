package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/bench/page"
)

// of returns a result of Outrigger's with a thousand services.
func of(mode, scenario string, change func(*Result)) Result {
	r := Result{ControlPlane: outrigger, Protocol: protocolDelta, Mode: mode, Scenario: scenario, Services: 1000, Proxies: 1000, Rounds: 1}
	change(&r)
	return r
}

// TestBars checks which bars the page calls met, missed and not measured.
func TestBars(t *testing.T) {
	results := []Result{
		of(modePolicy, scenarioEndpoint, func(r *Result) { r.Median, r.CPU = 51*time.Millisecond, 10*time.Millisecond }),
		of(modePolicy, scenarioEndpoint, func(r *Result) { r.Services, r.Proxies, r.CPU = 100, 100, 5*time.Millisecond }),
		of(modePolicy, scenarioRestart, func(r *Result) { r.All, r.Resent = 3*time.Second, 7 }),
		of(modePolicy, scenarioReconnect, func(r *Result) { r.Max, r.Failed = time.Second, "it takes too long" }),
		of(modePermissive, scenarioStall, func(r *Result) { r.Median, r.Held = 20*time.Millisecond, 4<<10 }),
		of(modePermissive, scenarioScale, func(r *Result) { r.Median = 19 * time.Millisecond }),
		// Those of others do not count.
		of(modePermissive, scenarioEndpoint, func(r *Result) { r.ControlPlane = istiod }),
	}
	var out strings.Builder
	writeBars(&out, results)
	for _, want := range []string{
		"| by policy, one endpoint changes: until the last proxy has acknowledged it | 50 ms | 51 ms: **missed** |",
		"| the same: CPU | 10 ms | 10 ms: met |",
		"| the same: CPU with the most services, against that with the fewest | 1.5 times | 2.0 times (5.0 ms with 100, 10 ms with 1000): **missed** |",
		"| restart, by policy: from the start until all proxies are served | 10 s | 3.00 s: met |",
		"| restart, by policy: resources sent again | 0 | 7: **missed** |",
		"| all proxies come back at once, by policy: the longest wait of one | 10 s | not measured |",
		"| a proxy that does not read, permissive: memory | 256 KiB | 4 KiB: met |",
		"| the same: until the others have a change, against that when all read | 1.5 times | 1.1 times (20 ms, 19 ms): met |",
		"| permissive, one endpoint changes: until the last proxy has acknowledged it | 150 ms | not measured |",
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("there is no row %s", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestPage writes a page from a file of results: what is outside of the results stays, and the
// plots are there.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	to, file := filepath.Join(dir, "page.md"), filepath.Join(dir, "results.json")
	run := Run{Arguments: []string{"-istiod", "/home/someone/istiod", "-sizes=1000"}, Results: []Result{
		of(modePolicy, scenarioConnect, func(r *Result) { r.Memory.Anonymous = 20 << 20 }),
		of(modePolicy, scenarioEndpoint, func(r *Result) {
			r.Median, r.Max, r.CPU, r.Bytes = 20*time.Millisecond, time.Second, time.Millisecond, 100
		}),
		of(modePolicy, scenarioEndpoint, func(r *Result) { r.Services, r.Median, r.CPU = 100, time.Millisecond, time.Millisecond }),
		of(modePolicy, scenarioEndpoint, func(r *Result) { r.ControlPlane, r.Failed = istiod, "no | answer\nat all" }),
		// One size is no curve.
		of(modePermissive, scenarioEndpoint, func(r *Result) { r.Median = time.Millisecond }),
	}}
	if err := os.Mkdir(filepath.Join(dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run.write(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte("before\n"+page.Begin+"old\n"+page.End+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writePage(to, []string{file}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	if !strings.HasPrefix(text, "before\n"+page.Begin) || !strings.HasSuffix(text, page.End+"after\n") || strings.Contains(text, "old\n") {
		t.Errorf("the page is %s", text)
	}
	for _, want := range []string{
		"go run ./test/bench/scale -istiod istiod -sizes=1000\n",
		"| what | services | proxies | outrigger, delta | istiod, delta |\n",
		"| endpoint | 1000 | 1000 | 20 ms, 1.00 s, 1.0 ms, 100 B | did not end: no / answer |\n",
		"](images/scale-policy-time.svg)", "](images/scale-policy-cpu.svg)", "](images/scale-policy-memory.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	for _, quantity := range []string{"time", "cpu", "memory"} {
		svg, err := os.ReadFile(filepath.Join(dir, "images", "scale-policy-"+quantity+".svg"))
		if err != nil || !strings.Contains(string(svg), "outrigger, delta") {
			t.Errorf("the plot of %s: %v, %d bytes", quantity, err, len(svg))
		}
	}
	if strings.Contains(text, "images/scale-permissive") {
		t.Error("there is a plot of a mode with one size")
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestFirstRunCounts checks that of the results of several runs those of the first are shown,
// as a plot would have two points in one place otherwise.
func TestFirstRunCounts(t *testing.T) {
	first := of(modePolicy, scenarioEndpoint, func(r *Result) { r.Median = time.Second })
	again := of(modePolicy, scenarioEndpoint, func(r *Result) { r.Median = time.Minute })
	other := of(modePolicy, scenarioEndpoint, func(r *Result) { r.Services = 300 })
	if got := newIn([]Result{again, other}, []Result{first}); len(got) != 1 || got[0].Services != 300 {
		t.Errorf("a second run adds %v", got)
	}
}
