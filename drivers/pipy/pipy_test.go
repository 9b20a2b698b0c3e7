package pipy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/drivers/pipy"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func TestAgentSpec(t *testing.T) {
	for level, want := range map[string]string{
		"trace": "debug", "debug": "debug", "info": "info", "warning": "warn", "error": "error", "critical": "error", "off": "error",
	} {
		t.Run(level, func(t *testing.T) {
			inj := &driver.InjectorContext{
				Pod:     &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}},
				PodOS:   "linux",
				Sidecar: driver.Sidecar{Image: "pipy", InitImage: "init", LogLevel: level},
			}
			if err := (pipy.Driver{}).Patch(inj); err != nil {
				t.Fatal(err)
			}
			var got agentspec.Spec
			for _, e := range inj.Pod.Spec.Containers[1].Env {
				if e.Name == agentspec.EnvSpec {
					if err := json.Unmarshal([]byte(e.Value), &got); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(got.Files) != 1 || got.Files[0].Path != "/run/outrigger/openssl.cnf" || !strings.Contains(got.Files[0].Content, "NumTickets = 0") {
				t.Errorf("the files are %+v, want OpenSSL's without session tickets", got.Files)
			}
			got.Files = nil
			if diff := cmp.Diff(agentspec.Spec{
				Command: []string{
					"pipy", "--threads=${OUTRIGGER_CONCURRENCY}", "--reuse-port", "--no-reload", "--no-graph", "--log-local=stdout", "--log-level=" + want, "/run/outrigger/repo/main.js",
				},
				Version: []string{"pipy", "--version"},
				Env:     []agentspec.EnvVar{{Name: "OPENSSL_CONF", Value: "/run/outrigger/openssl.cnf"}},
				Mirror: &agentspec.Mirror{
					URL: "https://${OUTRIGGER_CONTROLLER}:6060/repo/${POD_UID}/", Dir: "/run/outrigger/repo", Live: "config/",
				},
				Reload:   &agentspec.Reload{Signal: "HUP"},
				OnDemand: &agentspec.OnDemand{Known: "127.0.0.1:15004", Outside: "127.0.0.1:15005"},
				ReadyURL: "http://127.0.0.1:15010/ready",
				Drain:    &agentspec.Drain{Seconds: 5},
				Upgrade:  &agentspec.Upgrade{URL: "http://127.0.0.1:15010/leave", Seconds: 900},
			}, got); diff != "" {
				t.Errorf("the agent's specification (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSidecarImage(t *testing.T) {
	if got := (pipy.Driver{}).SidecarImage("linux"); !strings.Contains(got, "flomesh/pipy:") {
		t.Errorf("the image for Linux is %q", got)
	}
	if got := (pipy.Driver{}).SidecarImage("windows"); got != "" {
		t.Errorf("the image for Windows is %q, want none", got)
	}
}
