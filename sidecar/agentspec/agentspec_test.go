package agentspec_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// expand expands a value like the kubelet: $(NAME) becomes the variable, $$ a single dollar
// sign, and any other dollar sign stays.
func expand(value string, env map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '$' || i+1 == len(value) {
			b.WriteByte(value[i])
			continue
		}
		switch end := strings.IndexByte(value[i:], ')'); {
		case value[i+1] == '$':
			b.WriteByte('$')
			i++
		case value[i+1] == '(' && end >= 0:
			name := value[i+2 : i+end]
			if v, ok := env[name]; ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

var dollarTexts = []string{
	"/readyz", "$(POD_IP)", "$$(POD_IP)", "$$$(POD_IP)", "$$", "$", "a$", "$(", "$()", "$(POD_IP", "${POD_UID}", "$${POD_UID}",
	"$(${POD_UID})", `\u0024{`, `\$(POD_IP)`, "$é", "price=$5", `"quoted" <&>`, "a\nb", "\u2028",
}

func TestEnvValueSurvivesTheKubelet(t *testing.T) {
	for _, text := range dollarTexts {
		checkEnvValue(t, text)
	}
}

func checkEnvValue(t *testing.T, text string) {
	t.Helper()
	want := agentspec.Spec{
		Command: []string{"/proxy", text},
		Probes:  []agentspec.Probe{{Path: "/app-health/web/readyz", Kind: agentspec.HTTP, Port: 80, URL: text, TimeoutSeconds: 1}},
	}
	value, err := agentspec.EnvValue(want)
	if err != nil {
		t.Fatal(err)
	}
	var got agentspec.Spec
	if err := json.Unmarshal([]byte(expand(value, map[string]string{"POD_IP": "10.0.0.1", "": "nothing"})), &got); err != nil {
		t.Fatalf("%q: %v in %s", text, err, value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q is another after the kubelet (-want +got):\n%s", text, diff)
	}
}

func TestEnvValueKeepsReferencesReadable(t *testing.T) {
	got, err := agentspec.EnvValue(agentspec.Spec{Command: []string{"--id", "${POD_UID}"}})
	if want := `{"command":["--id","${POD_UID}"]}`; err != nil || got != want {
		t.Errorf("EnvValue = %s, %v, want %s", got, err, want)
	}
}

func TestEnvValueRefuses(t *testing.T) {
	if got, err := agentspec.EnvValue(make(chan int)); err == nil || !strings.HasPrefix(err.Error(), "encoding chan int: ") {
		t.Errorf("EnvValue of a channel = %q, %v", got, err)
	}
}

func FuzzEnvValue(f *testing.F) {
	for _, text := range dollarTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// JSON and pods contain only valid UTF-8.
		checkEnvValue(t, strings.ToValidUTF8(text, "?"))
	})
}
