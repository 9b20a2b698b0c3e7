package cli

import (
	"strings"
	"testing"
)

func TestCheckInjectNamesThePolicy(t *testing.T) {
	var out strings.Builder
	if err := printExplained(&out, []explained{{Object: "Pod/shop/web", Policy: "outrigger-injector.envoy.1\x1b[2J"}}, "text"); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "has its sidecar from the admission policy outrigger-injector.envoy.1") || strings.Contains(got, "\x1b") {
		t.Errorf("the output is %q", got)
	}
}
