package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// speaks is a driver with the given Translate and declarations.
type speaks struct {
	good
	translate func(*mesh.View) ([]driver.File, error)
	features  func() []mesh.Feature
	lacks     map[mesh.Feature]string
}

func (s speaks) Translate(view *mesh.View) ([]driver.File, error) { return s.translate(view) }

func (s speaks) Features() []mesh.Feature {
	if s.features == nil {
		return nil
	}
	return s.features()
}

func (s speaks) Lacks() map[mesh.Feature]string { return s.lacks }

// silent is a driver without optional interfaces.
type silent struct{}

func (silent) Patch(context.Context) error { return nil }

func (silent) Start(ctx context.Context) (health.Probes, error) { return serve(ctx, goodTLS) }

// adding is the good Translate with an additional file.
func adding(file func(*mesh.View) driver.File) driver.Driver {
	return speaks{translate: func(view *mesh.View) ([]driver.File, error) {
		files, err := good{}.Translate(view)
		return append(files, file(view)), err
	}}
}

// saying adds a file with the text.
func saying(text func(*mesh.View) string) driver.Driver {
	return adding(func(view *mesh.View) driver.File {
		return driver.File{Name: "more", Content: []byte(text(view))}
	})
}

func named(name string) driver.Driver {
	return adding(func(*mesh.View) driver.File { return driver.File{Name: name} })
}

// forgetful caches results by Outbound, ignoring the rest of the View.
func forgetful() driver.Driver {
	var made sync.Map
	return speaks{translate: func(view *mesh.View) ([]driver.File, error) {
		files, err := good{}.Translate(view)
		kept, _ := made.LoadOrStore(view.Outbound.Digest(), files)
		return kept.([]driver.File), err
	}}
}

func brokenTranslators() map[string][]brokenDriver {
	var calls atomic.Int64
	return map[string][]brokenDriver{
		"translator": {{"none", silent{}, "serves proxies at its port, but has no method Translate"}},
		"every_view": {
			{"nothing to call", speaks{translate: func(view *mesh.View) ([]driver.File, error) {
				if view.Outbound.Backends.Len() == 0 {
					return nil, errors.New("there is nothing")
				}
				return good{}.Translate(view)
			}}, "an empty View: there is nothing"},
			{"a protocol of later", speaks{translate: func(view *mesh.View) ([]driver.File, error) {
				for _, d := range view.Outbound.Destinations.All() {
					if !d.Protocol.IsHTTP() && d.Protocol != mesh.TCP && d.Protocol != mesh.TCPServerFirst {
						panic(d.Protocol)
					}
				}
				return good{}.Translate(view)
			}}, "a View of an unknown protocol: Translate panicked: later"},
			{"what it can't do", speaks{translate: func(view *mesh.View) ([]driver.File, error) {
				if view.Settings.Authorization != nil {
					return nil, errors.New("I can't ask anybody")
				}
				return good{}.Translate(view)
			}}, "a View that asks for ExternalAuthorization: I can't ask anybody"},
		},
		"pure": {
			{"ranges over a map", saying(func(*mesh.View) string {
				var text strings.Builder
				for key := range map[string]bool{"a": true, "b": true, "c": true, "d": true} {
					text.WriteString(key)
				}
				return text.String()
			}), "the bytes differ"},
			{"asks the clock", saying(func(*mesh.View) string { return fmt.Sprint(time.Now().Year()) }), "in another year: the bytes differ"},
			{"asks for the CPUs", saying(func(*mesh.View) string { return fmt.Sprint(runtime.GOMAXPROCS(0) == 1) }), "on one CPU: the bytes differ"},
			{"counts", saying(func(*mesh.View) string { return fmt.Sprint(calls.Add(1)) }), "the second time: the bytes differ"},
			{"shows where the View is", saying(func(view *mesh.View) string { return fmt.Sprintf("%p", view.Settings) }), "the second time: the bytes differ"},
		},
		"view_kept": {{"changes the settings", speaks{translate: func(view *mesh.View) ([]driver.File, error) {
			view.Settings.TLS.Min = "1.0"
			return nil, nil
		}}, "Translate changed"}},
		"files": {
			{"absolute", named("/etc/proxy.conf"), "is not a clean relative path"},
			{"above", named("../proxy.conf"), "is not a clean relative path"},
			{"of Windows", named(`conf\proxy.conf`), "is not a clean relative path"},
			{"longer than it need be", named("./proxy.conf"), "is not a clean relative path"},
			{"without a name", named(""), "is not a clean relative path"},
			{"twice", named("view.json"), "two files with the name view.json"},
			{"no text", saying(func(*mesh.View) string { return "\xff" }), "file more is not text"},
		},
		"no_secret": {{"a key", saying(func(*mesh.View) string { return "-----BEGIN EC PRIVATE KEY-----" }), "file more holds a private key"}},
		"scalars": {
			{"as it is", saying(func(view *mesh.View) string {
				return "path " + view.Inbound.Ports[1].Access.Rules[0].Requests[0].Path.Regex
			}), "has started a new line"},
			{"after blanks", saying(func(view *mesh.View) string {
				return strings.ReplaceAll(view.Inbound.Ports[1].Access.Rules[0].Requests[0].Path.Regex, "\n", "\n  ")
			}), "has started a new line"},
		},
		"differs": {
			{"the same for all", speaks{translate: func(*mesh.View) ([]driver.File, error) {
				return []driver.File{{Name: "proxy.conf", Content: []byte("listen 15001")}}, nil
			}}, "a change of an endpoint's address: the configuration is the same"},
			{"what is called only", speaks{translate: func(view *mesh.View) ([]driver.File, error) {
				return []driver.File{{Name: "proxy.conf", Content: []byte(toJSON(view.Outbound))}}, nil
			}}, "a change of who may call by HTTP: the configuration is the same"},
			{"remembers too much", forgetful(), "a change of who may call by HTTP: the configuration is the same"},
		},
		"closed": {{"takes an audit for an open port", speaks{translate: func(view *mesh.View) ([]driver.File, error) {
			inbound := *view.Inbound
			inbound.Ports = slices.Clone(inbound.Ports)
			for i := range inbound.Ports {
				inbound.Ports[i].Access.Anyone = inbound.Ports[i].Access.Anyone || inbound.Ports[i].Access.Audit
			}
			return []driver.File{{Name: "proxy.conf", Content: []byte(toJSON(inbound))}}, nil
		}}, "an audit without Anyone, at a TCP port: the configuration is the one that admits everybody"}},
	}
}

// TestSuiteCatchesTranslate checks every rule of Translate with drivers that break it.
func TestSuiteCatchesTranslate(t *testing.T) {
	broken := brokenTranslators()
	for _, r := range translateRules {
		if len(broken[r.name]) == 0 {
			t.Errorf("no driver breaks the rule %s", r.name)
		}
		for _, b := range broken[r.name] {
			t.Run(r.name+"/"+b.name, func(t *testing.T) { catches(t, r, b) })
		}
		delete(broken, r.name)
	}
	for name := range broken {
		t.Errorf("there is no rule %s", name)
	}
}

func catches(t *testing.T, r rule, b brokenDriver) {
	t.Helper()
	err := r.check(subject{driver: b.driver, limit: callLimit, t: t})
	if err == nil || !strings.Contains(err.Error(), b.want) {
		t.Errorf("the rule found %v, want it to find %q", err, b.want)
	}
}

// replacing is the good Translate with a replacement in its text.
func replacing(old, now string) func(*mesh.View) ([]driver.File, error) {
	return func(view *mesh.View) ([]driver.File, error) {
		files, err := good{}.Translate(view)
		if len(files) > 0 {
			files[0].Content = bytes.ReplaceAll(files[0].Content, []byte(old), []byte(now))
		}
		return files, err
	}
}

// TestSuiteCatchesFeatures has drivers with false declarations, and ones that fail open.
func TestSuiteCatchesFeatures(t *testing.T) {
	rules := map[string]rule{}
	for _, r := range featureRules() {
		rules[r.name] = r
	}
	deaf := speaks{features: mesh.Features, translate: func(*mesh.View) ([]driver.File, error) { return nil, nil }}
	hides := speaks{translate: good{}.Translate}
	for name, r := range rules {
		if name == "declaration" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if name != string(mesh.FeatureServerFirst) {
				catches(t, r, brokenDriver{driver: deaf, want: "is declared, but the configuration is the same without it"})
			}
			catches(t, r, brokenDriver{driver: hides, want: "is not declared, but makes a difference"})
			denies := hides
			denies.lacks = map[mesh.Feature]string{mesh.Feature(name): "it is denied"}
			if err := r.check(subject{driver: denies, limit: callLimit}); err != nil {
				t.Errorf("a driver that documents the denial fails: %v", err)
			}
			ignores := deaf
			ignores.features = nil
			if err := r.check(subject{driver: ignores, limit: callLimit}); err != nil {
				t.Errorf("a driver that ignores an undeclared feature fails: %v", err)
			}
		})
	}
	for _, tt := range []struct {
		feature mesh.Feature
		// Replacing old by now in the View's text removes the condition.
		old, now string
	}{
		{mesh.FeatureHeaderMatches, `{"headers":[{"name":"x-version","exact":"2"}]}`, `{}`},
		{mesh.FeatureQueryMatches, `{"query":[{"name":"version","exact":"2"}]}`, `{}`},
		{mesh.FeatureExternalAuthorization, `,"authorization":{"host":"authorization.example.com","port":9191,"timeout":1000000000,"statPrefix":"authorization"}`, ``},
		{mesh.FeatureIngressTLS, `"tls":true,"skipClientCert":true,`, ``},
		{mesh.FeatureEgressHTTP, `"protocol":"http","hosts":[{"host":"*.example.com","matches":[{}]},{"host":"example.com","matches":[{}]}]`, `"protocol":"tcp","ranges":["0.0.0.0/0","::/0"]`},
		{mesh.FeatureEgressTLS, `"protocol":"tls","hosts":[{"host":"*.example.com","matches":[{}]},{"host":"example.com","matches":[{}]}]`, `"protocol":"tcp","ranges":["0.0.0.0/0","::/0"]`},
	} {
		t.Run("fails open/"+string(tt.feature), func(t *testing.T) {
			catches(t, rules[string(tt.feature)], brokenDriver{
				// Documenting a denial does not help.
				driver: speaks{translate: replacing(tt.old, tt.now), lacks: map[mesh.Feature]string{tt.feature: "it is denied"}}, want: "fails open",
			})
		})
	}
}

func TestSuiteCatchesDeclarations(t *testing.T) {
	declares := func(features ...mesh.Feature) func() []mesh.Feature {
		return func() []mesh.Feature { return features }
	}
	calls := 0
	for _, b := range []brokenDriver{
		{"unknown", speaks{features: declares("Telepathy")}, `"Telepathy" is not a feature`},
		{"twice", speaks{features: declares(mesh.FeatureRetries, mesh.FeatureRetries)}, "Retries is declared twice"},
		{"now this, now that", speaks{features: func() []mesh.Feature {
			calls++
			return mesh.Features()[:calls]
		}}, "and then"},
		{"lacks what it declares", speaks{features: declares(mesh.FeatureRetries), lacks: map[mesh.Feature]string{mesh.FeatureRetries: "none"}}, "Lacks names Retries, which Features declares"},
		{"lacks what there is not", speaks{lacks: map[mesh.Feature]string{"Telepathy": "none"}}, `Lacks names "Telepathy", which is not a feature`},
		{"lacks words", speaks{lacks: map[mesh.Feature]string{mesh.FeatureRetries: ""}}, `Lacks has the text "" for Retries`},
	} {
		t.Run(b.name, func(t *testing.T) { catches(t, featureRules()[0], b) })
	}
}

// picky is a driver whose proxy rejects a View.
type picky struct {
	good
	check func(*mesh.View) error
}

func (p picky) Check(_ context.Context, view *mesh.View) error { return p.check(view) }

func TestSuiteCatchesRefusals(t *testing.T) {
	catches(t, deliveryRules[0], brokenDriver{want: "a View that asks for everything: I refuse", driver: picky{check: func(view *mesh.View) error {
		if view.Settings.Authorization != nil {
			return errors.New("I refuse")
		}
		return nil
	}}})
	err := deliveryRules[0].check(subject{driver: picky{check: func(*mesh.View) error { return fmt.Errorf("%w: buy one", driver.ErrNoProxy) }}})
	if !errors.Is(err, driver.ErrNoProxy) {
		t.Errorf("without a proxy the rule found %v, want ErrNoProxy", err)
	}
}

// mirrored is a driver whose files are checked by a shell command.
type mirrored struct {
	good
	script string
}

func (m mirrored) Patch(ctx context.Context) error {
	return podtemplate.Apply(ctx, "good", goodTemplate, &agentspec.Spec{
		Command: []string{"/proxy"},
		Mirror: &agentspec.Mirror{
			URL: "https://${OUTRIGGER_CONTROLLER}:6060/", Dir: "/run/outrigger/files",
			Check: []string{"sh", "-c", m.script, "sh", "${MIRROR}/view.json", "/run/outrigger-identity/identity.pem"},
		},
	})
}

// TestLastGood has commands check versions as the agent does.
func TestLastGood(t *testing.T) {
	var lastGood rule
	for _, r := range deliveryRules {
		if r.name == "last_good" {
			lastGood = r
		}
	}
	strict := mirrored{script: `test -s "$2" && grep -q '"shop/cart' "$1" && ! grep -q 'no configuration' "$1"`}
	if err := lastGood.check(subject{driver: strict, limit: callLimit}); err != nil {
		t.Errorf("a correct check fails: %v", err)
	}
	for _, b := range []brokenDriver{
		{"takes everything", mirrored{script: "exit 0"}, "the check accepts every file with"},
		{"takes nothing", mirrored{script: "echo I do not like it; exit 1"}, "rejects the output of Translate for a plain View: exit status 1: I do not like it"},
	} {
		t.Run(b.name, func(t *testing.T) { catches(t, lastGood, b) })
	}
}
