package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestInitVerify checks that the agent is installed once rules exist, and that without them
// the init container fails with a hint at what to check.
func TestInitVerify(t *testing.T) {
	for name, test := range map[string]struct {
		// there are the results of Present; the last one repeats.
		there  []bool
		err    error
		code   int
		output string
	}{
		"there":         {there: []bool{true}},
		"after a while": {there: []bool{false, false, true}},
		"never":         {there: []bool{false}, code: exitRefused, output: "the DaemonSet outrigger-cni"},
		"unknown":       {there: []bool{false}, err: errors.New("no loopback"), code: exitFailed, output: "no loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "agent")
			var out bytes.Buffer
			looks := 0
			p := &program{stdout: &out, stderr: &out, env: lookup(map[string]string{agentspec.EnvRedirection: `{}`}), rules: Rules{
				Apply: func(agentspec.Redirection) error {
					t.Error("it writes rules")
					return nil
				},
				Present: func() (bool, error) {
					if _, err := os.Stat(to); err == nil {
						t.Error("the agent is there before the rules are")
					}
					looks++
					return test.there[min(looks, len(test.there))-1], test.err
				},
			}}
			if code := p.main([]string{"init", "--verify", "--timeout", "700ms", "--to", to}); code != test.code || !strings.Contains(out.String(), test.output) {
				t.Errorf("exit code %d, want %d, and output with %q:\n%s", code, test.code, test.output, out.String())
			}
			if looks < len(test.there) {
				t.Errorf("it looked %d times, want at least %d", looks, len(test.there))
			}
			if _, err := os.Stat(to); (err == nil) != (test.code == 0) {
				t.Errorf("the agent: %v", err)
			}
		})
	}
}
