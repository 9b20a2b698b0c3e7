package process

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

func TestReason(t *testing.T) {
	long := strings.Repeat("x", 3*kit.MaxLine)
	for text, want := range map[string]string{
		"":                              "",
		"one\ntwo\n":                    "one two",
		"fine\n[ALERT] no port\n#0 [a]": "[ALERT] no port",
		"\xff\x00\x1b[2Jcleared":        "[2Jcleared",
	} {
		if got := reason(text); got != want {
			t.Errorf("reason(%q) = %q, want %q", text, got, want)
		}
	}
	if got := reason("error: " + long); len(got) > kit.MaxLine+3 || !strings.HasPrefix(got, "...") {
		t.Errorf("a long reason has %d bytes", len(got))
	}
}
