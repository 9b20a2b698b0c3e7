package drivertest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const goodTemplate = `{{ template "outrigger.pod" . }}`

// good is a driver that follows all rules. Drivers that break one
// embed it.
type good struct{}

func (good) PodTemplate() string { return goodTemplate }

func (good) Patch(ctx context.Context) error {
	return podtemplate.Apply(ctx, "good", goodTemplate, &agentspec.Spec{
		Command:  []string{"/proxy"},
		Files:    []agentspec.File{{Path: "/run/outrigger/proxy.yaml", Content: "id: ${POD_UID}"}},
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &agentspec.Drain{URL: "http://127.0.0.1:15000/drain", Seconds: 5},
	})
}

func (good) Start(ctx context.Context) (health.Probes, error) { return serve(ctx, goodTLS) }

// goodTLS is a driver's TLS configuration.
func goodTLS(ctrl *driver.ControllerContext) *tls.Config { return ctrl.CertManager.ServerTLS() }

// serve holds connections until ctx ends.
func serve(ctx context.Context, tlsOf func(*driver.ControllerContext) *tls.Config) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(ctrl.BindAddress, strconv.Itoa(int(ctrl.ProxyServerPort))))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	config := tlsOf(ctrl)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				secure := tls.Server(conn, config)
				defer secure.Close()
				if secure.Handshake() == nil {
					<-ctx.Done()
				}
			}()
		}
	}()
	ctrl.DebugHandlers["/debug/good"] = http.NotFoundHandler()
	return health.Func{ID: "good"}, nil
}

// Translate returns the complete View.
func (good) Translate(view *mesh.View) ([]driver.File, error) {
	content, err := json.Marshal(view)
	return []driver.File{{Name: "view.json", Content: content}}, err
}

func (good) Features() []mesh.Feature { return mesh.Features() }

func TestGoodDriver(t *testing.T) {
	TestDriver(t, good{})
}

func TestGoodProxylessDriver(t *testing.T) {
	TestPatch(t, proxyless(func(*corev1.Pod) {}))
}

// TestSuiteCatches checks every rule of Patch with drivers that break it.
func TestSuiteCatches(t *testing.T) {
	broken := brokenDrivers()
	for _, r := range patchRules {
		if len(broken[r.name]) == 0 {
			t.Errorf("no driver breaks the rule %s", r.name)
		}
		for _, b := range broken[r.name] {
			t.Run(r.name+"/"+b.name, func(t *testing.T) {
				err := r.check(subject{driver: b.driver, limit: callLimit})
				if err == nil || !strings.Contains(err.Error(), b.want) {
					t.Errorf("the rule found %v, want it to find %q", err, b.want)
				}
			})
		}
		delete(broken, r.name)
	}
	for name := range broken {
		t.Errorf("there is no rule %s", name)
	}
}

// TestSuiteEnds runs rules with a driver that never returns.
func TestSuiteEnds(t *testing.T) {
	hangs := broken{patch: func(context.Context) error { select {} }}
	for _, r := range patchRules {
		if r.name != "cancelled" && r.name != "missing_context" {
			continue
		}
		err := r.check(subject{driver: hangs, limit: 50 * time.Millisecond})
		if want := "Patch has not returned after 50ms"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the rule %s found %v, want it to find %q", r.name, err, want)
		}
	}
}

// badStart is a driver whose Start is a function.
type badStart struct {
	good
	start func(context.Context) (health.Probes, error)
}

func (b badStart) Start(ctx context.Context) (health.Probes, error) { return b.start(ctx) }

// TestSuiteCatchesStart checks every rule of Start with drivers that break it.
func TestSuiteCatchesStart(t *testing.T) {
	broken := brokenStarts()
	for _, r := range startRules {
		if len(broken[r.name]) == 0 {
			t.Errorf("no driver breaks the rule %s", r.name)
		}
		for _, b := range broken[r.name] {
			t.Run(r.name+"/"+b.name, func(t *testing.T) {
				err := r.check(subject{driver: b.driver, limit: time.Second})
				if err == nil || !strings.Contains(err.Error(), b.want) {
					t.Errorf("the rule found %v, want it to find %q", err, b.want)
				}
			})
		}
		delete(broken, r.name)
	}
	for name := range broken {
		t.Errorf("there is no rule %s", name)
	}
}

// TestReport runs the suite in another process, as the test of a driver that breaks a
// rule: the failed test must explain
// the rule.
func TestReport(t *testing.T) {
	const env = "OUTRIGGER_DRIVERTEST_REPORT"
	if os.Getenv(env) != "" {
		TestPatch(t, sidecarChange(func(c *corev1.Container) { c.Image = "example.com/other" }))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestReport$/^Patch$/^sidecar$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Fatalf("the test of a bad driver ended with %v:\n%s", err, out)
	}
	for _, want := range []string{"--- FAIL: TestReport/Patch/sidecar", "plain pod, native: no container was added with the image", "The rule: Patch adds a container with Sidecar.Image, the name"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}
