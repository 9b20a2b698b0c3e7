package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/probe"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

var discard = slog.New(slog.DiscardHandler)

// environment returns the sidecar container's environment with the Spec.
func environment(spec string) map[string]string {
	return map[string]string{
		agentspec.EnvSpec: spec, agentspec.EnvController: controllerHost, agentspec.EnvTrustDomain: "cluster.local",
		agentspec.EnvPodName: "a", agentspec.EnvPodNamespace: "b", agentspec.EnvPodUID: "c", agentspec.EnvPodIP: "10.0.0.1", agentspec.EnvServiceAccount: "d",
	}
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { value, ok := env[name]; return value, ok }
}

func TestSpecIsExpanded(t *testing.T) {
	env := environment(`{"command":["${POD_NAME}","$POD_NAME","${}","${POD_NAME"],"files":[{"path":"/f/${POD_NAME}","content":"${POD_UID}${EMPTY}\n${POD_UID}"}],
		"mirror":{"url":"https://${OUTRIGGER_CONTROLLER}:6060/","dir":"/${POD_NAME}","check":["${POD_NAME}","${MIRROR}/x"]},"readyURL":"http://${POD_IP}/","drain":{"url":"http://${POD_IP}/d","seconds":5},
		"reload":{"command":["${POD_NAME}","${MIRROR}/x"]},"probes":[{"path":"/p","kind":"HTTP","port":1,"url":"/${POD_NAME}","timeoutSeconds":1}]}`)
	env["EMPTY"] = ""
	c, err := readConfig(lookup(env))
	if err != nil {
		t.Fatal(err)
	}
	want := agentspec.Spec{
		Command:  []string{"a", "$POD_NAME", "${}", "${POD_NAME"},
		Files:    []agentspec.File{{Path: "/f/${POD_NAME}", Content: "c\nc"}},
		Mirror:   &agentspec.Mirror{URL: "https://" + controllerHost + ":6060/", Dir: "/${POD_NAME}", Check: []string{"a", "${MIRROR}/x"}},
		ReadyURL: "http://10.0.0.1/",
		Drain:    &agentspec.Drain{URL: "http://10.0.0.1/d", Seconds: 5},
		Reload:   &agentspec.Reload{Command: []string{"a", "/${POD_NAME}/x"}},
		Probes:   []agentspec.Probe{{Path: "/p", Kind: agentspec.HTTP, Port: 1, URL: "/${POD_NAME}", TimeoutSeconds: 1}},
	}
	if diff := cmp.Diff(want, c.spec); diff != "" {
		t.Errorf("Spec (-want +got):\n%s", diff)
	}
}

var badSpecs = map[string]string{
	`nonsense`:             "invalid character",
	`null`:                 "command is empty",
	`[]`:                   "cannot unmarshal array",
	`{"command":["a"]} {}`: "data after the JSON value",
	`{"command":["${NOT_SET} ${nor-this.one}"]}`:                 "it refers to NOT_SET, nor-this.one",
	`{"shareIdentity":true,"reload":{"signal":"HUP"}}`:           "reload and readyURL need a command",
	`{"shareIdentity":true,"readyURL":"http://127.0.0.1/ready"}`: "reload and readyURL need a command",
	`{"command":[""]}`:                                                                                                                           "command is empty",
	`{"command":["a\u0000"]}`:                                                                                                                    "zero byte",
	`{"command":["a"],"files":[{"path":"a"}]}`:                                                                                                   `file "a": the path must be absolute`,
	`{"command":["a"],"files":[{"path":"/a/../b"}]}`:                                                                                             `file "/a/../b": the path must be absolute`,
	`{"command":["a"],"files":[{"path":"/a","content":"${GONE}"}]}`:                                                                              "content of file /a: it refers to GONE",
	`{"command":["a"],"files":[{"path":"/run/outrigger-identity/key.pem"}]}`:                                                                     "reserved for the agent's identity files",
	`{"command":["a"],"files":[{"path":"/a"},{"path":"/a"}]}`:                                                                                    `file "/a" appears twice`,
	`{"command":["a"],"secrets":{"socket":"a"}}`:                                                                                                 "secrets.socket",
	`{"command":["a"],"secrets":{"socket":"/a"},"files":[{"path":"/a"}]}`:                                                                        "is also one of the files",
	`{"command":["a"],"secrets":{"socket":"/a/b"},"mirror":{"url":"https://a/","dir":"/a"}}`:                                                     "reserved for files from the repository",
	`{"command":["a"],"secrets":{"socket":"/` + strings.Repeat("a", 107) + `"}}`:                                                                 "longer than 107 bytes",
	`{"command":["a"],"mirror":{"url":"http://a/","dir":"/a"}}`:                                                                                  "is not an https URL",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"a"}}`:                                                                                  "mirror.dir",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/run/outrigger-identity/a"}}`:                                                          "reserved for the agent's identity files",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/run"}}`:                                                                               "reserved for the agent's identity files",
	`{"command":["a"],"files":[{"path":"/a/b"}],"mirror":{"url":"https://a/","dir":"/a"}}`:                                                       "reserved for files from the repository",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/a","live":"i"}}`:                                                                      "matches the agent's own file",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/a","live":"/b"}}`:                                                                     "is not a prefix of file names",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/a","live":"b/../c"}}`:                                                                 "is not a prefix of file names",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/a","check":[""]}}`:                                                                    "mirror.check is empty",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/a","check":["a","${GONE}"]}}`:                                                         "mirror.check: it refers to GONE",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/a","check":["a\u0000"]}}`:                                                             "mirror.check contains a zero byte",
	`{"command":["a"],"reload":{"command":["a","${MIRROR}"]}}`:                                                                                   "reload.command: it refers to MIRROR",
	`{"command":["a"],"reload":{"command":["a\u0000"]}}`:                                                                                         "reload.command contains a zero byte",
	`{"command":["a"],"probes":[{"path":"/mirror","kind":"TCP","port":1,"timeoutSeconds":1}]}`:                                                   "reserved for the agent",
	`{"command":["a"],"env":[{"name":"a=b"}]}`:                                                                                                   "cannot be an environment variable",
	`{"command":["a"],"env":[{"name":""}]}`:                                                                                                      "cannot be an environment variable",
	`{"command":["a"],"env":[{"name":"A","value":"${GONE}"}]}`:                                                                                   "env A: it refers to GONE",
	`{"command":["a"],"reload":{"command":["a"],"workers":true}}`:                                                                                "reload.workers needs a signal",
	`{"command":["a"],"reload":{}}`:                                                                                                              "reload needs a signal or a command",
	`{"command":["a"],"reload":{"signal":"HUP","command":["a"]}}`:                                                                                "reload needs a signal or a command",
	`{"command":["a"],"reload":{"signal":"WHATEVER"}}`:                                                                                           "is not the name of a signal",
	`{"command":["a"],"reload":{"command":[""]}}`:                                                                                                "reload.command is empty",
	`{"command":["a"],"spans":{"collector":"a"}}`:                                                                                                "spans.collector",
	`{"command":["a"],"mirror":{"url":"https://a/","dir":"/m"},"spans":{"collector":"../a"}}`:                                                    "spans.collector",
	`{"command":["a"],"readyURL":"ftp://a/"}`:                                                                                                    "readyURL",
	`{"command":["a"],"drain":{"url":"/a","seconds":1}}`:                                                                                         "drain.url",
	`{"command":["a"],"upgrade":{"url":"/a","seconds":1}}`:                                                                                       "upgrade.url",
	`{"command":["a"],"upgrade":{"signal":"NONE"}}`:                                                                                              "upgrade.signal",
	`{"command":["a"],"upgrade":{"seconds":-1}}`:                                                                                                 "upgrade.seconds",
	`{"shareIdentity":true,"upgrade":{"seconds":1}}`:                                                                                             "upgrade needs a command",
	`{"command":["a"],"drain":{"seconds":-1}}`:                                                                                                   "drain.seconds",
	`{"command":["a"],"probes":[{"path":"a","kind":"TCP","port":1,"timeoutSeconds":1}]}`:                                                         "must begin with a slash",
	`{"command":["a"],"probes":[{"path":"/ready","kind":"TCP","port":1,"timeoutSeconds":1}]}`:                                                    "reserved for the agent",
	`{"command":["a"],"probes":[{"path":"/a","kind":"UDP","port":1,"timeoutSeconds":1}]}`:                                                        "is not HTTP, TCP or GRPC",
	`{"command":["a"],"probes":[{"path":"/a","kind":"TCP","port":0,"timeoutSeconds":1}]}`:                                                        "0 is not a port",
	`{"command":["a"],"probes":[{"path":"/a","kind":"TCP","port":1}]}`:                                                                           "timeoutSeconds is 0",
	`{"command":["a"],"probes":[{"path":"/a","kind":"HTTP","scheme":"FTP","port":1,"timeoutSeconds":1}]}`:                                        `scheme "FTP"`,
	`{"command":["a"],"probes":[{"path":"/a","kind":"TCP","port":1,"timeoutSeconds":1},{"path":"/a","kind":"TCP","port":1,"timeoutSeconds":1}]}`: "appears twice",
}

func TestBadSpec(t *testing.T) {
	for spec, want := range badSpecs {
		_, err := readConfig(lookup(environment(spec)))
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &misuse{}) {
			t.Errorf("%s: %v, want an error with %q", spec, err, want)
		}
	}
}

func TestMissingEnvironment(t *testing.T) {
	_, err := readConfig(lookup(nil))
	for _, name := range []string{agentspec.EnvSpec, agentspec.EnvController, agentspec.EnvTrustDomain, agentspec.EnvPodNamespace, agentspec.EnvPodUID, agentspec.EnvServiceAccount} {
		if err == nil || !strings.Contains(err.Error(), "environment variable "+name+" is not set") {
			t.Errorf("the error does not say that %s is missing: %v", name, err)
		}
	}
	env := environment(`{"command":["a"]}`)
	env[agentspec.EnvPodNamespace] = "a/b"
	if _, err := readConfig(lookup(env)); err == nil {
		t.Error("a namespace with a slash is taken")
	}
	env = environment(`{"command":["a"],"probes":[{"path":"/a","kind":"TCP","port":1,"timeoutSeconds":1}]}`)
	delete(env, agentspec.EnvPodIP)
	if _, err := readConfig(lookup(env)); err == nil || !strings.Contains(err.Error(), agentspec.EnvPodIP) {
		t.Errorf("a probe of the pod's address without the address: %v", err)
	}
}

func TestNewerSpec(t *testing.T) {
	c, err := readConfig(lookup(environment(`{"command":["a"],"fromTheFuture":true}`)))
	if err != nil || c.ignored == nil || !strings.Contains(c.ignored.Error(), "fromTheFuture") {
		t.Errorf("a field that is not known: %v, %v", c, err)
	}
}

func FuzzSpec(f *testing.F) {
	for spec := range badSpecs {
		f.Add(spec)
	}
	f.Add(`{"shareIdentity":true}`)
	f.Add(`{"command":["${POD_NAME}"],"probes":[{"path":"/a","kind":"HTTP","port":1,"url":"%zz","headers":[{"name":"\n"}],"timeoutSeconds":1}]}`)
	f.Fuzz(func(t *testing.T, spec string) {
		c, err := readConfig(lookup(environment(spec)))
		if err != nil {
			if !errors.As(err, &misuse{}) {
				t.Errorf("%v", err)
			}
			return
		}
		if len(c.spec.Command) == 0 && !c.spec.ShareIdentity || len(c.spec.Command) > 0 && c.spec.Command[0] == "" {
			t.Errorf("no command in %q", spec)
		}
		// A Spec that is accepted must be usable.
		server := probe.NewServer(probe.Options{Probes: c.spec.Probes, PodIP: c.podIP, Log: discard, Metrics: new(kit.Metrics)})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, p := range c.spec.Probes {
			if p.Hook != "" {
				continue
			}
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ended, "GET", "/", nil)
			r.URL.Path = p.Path
			if server.ServeHTTP(w, r); w.Code == http.StatusNotFound {
				t.Errorf("probe %q is not answered", p.Path)
			}
		}
	})
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		args   []string
		env    map[string]string
		code   int
		output string
	}{
		{nil, nil, 2, "no command given"},
		{[]string{"--help"}, nil, 0, "Exit codes:"},
		{[]string{"help"}, nil, 0, "Exit codes:"},
		{[]string{"fly"}, nil, 2, `unknown command "fly"`},
		{[]string{"run", "--help"}, nil, 0, "--exit-with NAME"},
		{[]string{"run", "--nope"}, nil, 2, "flag provided but not defined"},
		{[]string{"run", "now"}, nil, 2, `unknown argument "now"`},
		{[]string{"run", "--log-level", "loud"}, nil, 2, "levels are debug, info, warn and error"},
		{[]string{"run"}, nil, 2, "environment variable OUTRIGGER_AGENT is not set"},
		{[]string{"init"}, nil, 2, "environment variable OUTRIGGER_REDIRECTION is not set"},
		{[]string{"init"}, map[string]string{agentspec.EnvRedirection: "{"}, 2, "OUTRIGGER_REDIRECTION"},
		{[]string{"init"}, map[string]string{agentspec.EnvRedirection: `{"fromTheFuture":1}`}, 2, "fromTheFuture"},
		{[]string{"init"}, map[string]string{agentspec.EnvRedirection: `{"disableInbound":true}`}, 1, "no netfilter here"},
		{[]string{"copy", "a", "b"}, nil, 2, `unknown argument "b"`},
		{[]string{"copy", filepath.Join(dir, "file/x")}, nil, 1, "copying the agent"},
		{[]string{"wait", "--timeout", "1ms", "--url", "http://127.0.0.1:1/ready"}, nil, 3, "not ready within 1ms"},
		{[]string{"wait", "--url", "here"}, nil, 2, "is not an http URL"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		p := &program{stdout: &out, stderr: &out, env: lookup(tt.env), timings: testTimings, rules: Rules{Apply: func(r agentspec.Redirection) error {
			if !r.DisableInbound {
				t.Error("the redirection is not what the environment says")
			}
			return errors.New("no netfilter here")
		}}}
		if code := p.main(tt.args); code != tt.code || !strings.Contains(out.String(), tt.output) {
			t.Errorf("%q: exit code %d, want %d, and output with %q:\n%s", tt.args, code, tt.code, tt.output, out.String())
		}
	}
}

func TestCopy(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for to, file := range map[string]string{
		filepath.Join(dir, "bin") + "/":  filepath.Join(dir, "bin/outrigger-agent"),
		dir:                              filepath.Join(dir, "outrigger-agent"),
		filepath.Join(dir, "a/b/myname"): filepath.Join(dir, "a/b/myname"),
	} {
		for range 2 {
			p := &program{stdout: os.Stdout, stderr: os.Stderr, env: lookup(nil)}
			if code := p.main([]string{"copy", to}); code != 0 {
				t.Fatalf("copying to %s ended with %d", to, code)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not the program: %d bytes, %v", file, len(got), err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s has the mode %v, %v", file, info, err)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(file), ".*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestInit(t *testing.T) {
	to := filepath.Join(t.TempDir(), "bin/agent")
	var got []agentspec.Redirection
	p := &program{stdout: os.Stdout, stderr: os.Stderr, rules: Rules{Apply: func(r agentspec.Redirection) error {
		if _, err := os.Stat(to); err == nil {
			t.Error("the agent is there before the rules are")
		}
		got = append(got, r)
		return nil
	}}, env: lookup(map[string]string{agentspec.EnvRedirection: `{"excludeInboundPorts":[9000],"excludeOutboundRanges":["10.0.0.0/8"]}`})}
	if code := p.main([]string{"init", "--to", to}); code != 0 {
		t.Fatalf("init ended with %d", code)
	}
	want := []agentspec.Redirection{{ExcludeInboundPorts: []int{9000}, ExcludeOutboundRanges: []string{"10.0.0.0/8"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("redirections (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the agent is not there: %v, %v", info, err)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-gate", "${GATE}")
	p.env["GATE"] = p.path("gate")
	p.serve()
	p.start()
	ended := make(chan int, 1)
	go func() {
		w := &program{stdout: os.Stdout, stderr: os.Stderr, env: lookup(nil)}
		ended <- w.main([]string{"wait", "--url", "http://" + p.ip + ":15901/ready"})
	}()
	p.until("started", func() bool { return p.proxyPID() != 0 })
	select {
	case code := <-ended:
		t.Fatalf("it did not wait, and ended with %d", code)
	default:
	}
	p.write("gate", "")
	if code := <-ended; code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

// TestNoMoreThreadsThanProcessors checks that a proxy never gets more worker threads than
// there are processors.
func TestNoMoreThreadsThanProcessors(t *testing.T) {
	for asked, want := range map[string]string{"1": "1", "2": "2", "4": "4", "5": "4", "256": "4", "many": "many"} {
		env := limitThreads(lookup(map[string]string{agentspec.EnvConcurrency: asked, agentspec.EnvPodUID: "99"}), 4)
		for text, want := range map[string]string{"--threads=${OUTRIGGER_CONCURRENCY}": "--threads=" + want, "${POD_UID}": "99"} {
			if got, err := expand(text, env); err != nil || got != want {
				t.Errorf("%s threads asked for: %s becomes %q, %v; want %q", asked, text, got, err, want)
			}
		}
	}
	spec, err := json.Marshal(agentspec.Spec{Command: []string{"proxy", "${OUTRIGGER_CONCURRENCY}"}})
	if err != nil {
		t.Fatal(err)
	}
	env := environment(string(spec))
	env[agentspec.EnvConcurrency] = "1000000"
	c, err := readConfig(lookup(env))
	if err != nil {
		t.Fatal(err)
	}
	if want := strconv.Itoa(runtime.NumCPU()); c.spec.Command[1] != want {
		t.Errorf("the proxy is given %s threads, want %s", c.spec.Command[1], want)
	}
}
