package pipy

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// TestVocabulary compares the script's names with those of all proxies.
func TestVocabulary(t *testing.T) {
	read := func(name string) string {
		text, err := codebase.ReadFile("codebase/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	script := read("telemetry.js")
	for _, m := range telemetry.Metrics() {
		if want := "  " + m.Name + ": '" + strings.ReplaceAll(m.Help, "'", `\'`) + "',\n"; !strings.Contains(script, want) {
			t.Errorf("telemetry.js has no %s", want)
		}
		for _, label := range m.Labels {
			if !regexp.MustCompile(`\b` + label + `\b`).MatchString(script) {
				t.Errorf("telemetry.js has no label %s", label)
			}
		}
	}
	labels := regexp.MustCompile(`(?m)^    (\w+)(?:: .*)?,$`).FindAllStringSubmatch(script[strings.Index(script, "function labelsOf"):], len(telemetry.Labels()))
	for i, label := range telemetry.Labels() {
		if i >= len(labels) || labels[i][1] != label {
			t.Errorf("label %d of telemetry.js is not %s, as it is in %v", i, label, labels)
			break
		}
	}
	var known []string
	for _, r := range telemetry.Reasons() {
		known = append(known, r.Name)
	}
	table := script[strings.Index(script, "var reasons = {"):]
	for _, reason := range regexp.MustCompile(`: '(\w+)',`).FindAllStringSubmatch(table[:strings.Index(table, "\n}")], -1) {
		if !slices.Contains(known, reason[1]) {
			t.Errorf("telemetry.js has the reason %q, which is not one of %v", reason[1], known)
		}
	}
	var bounds []string
	for _, b := range telemetry.Buckets() {
		bounds = append(bounds, strconv.FormatFloat(b, 'g', -1, 64))
	}
	if want := "'histogram of seconds': [" + strings.Join(bounds, ", ") + "]"; !strings.Contains(read("metrics.js"), want) {
		t.Errorf("metrics.js has no %s", want)
	}
}
