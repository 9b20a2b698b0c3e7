package agent

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestMountedBundleIsFollowed(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	before := p.mustIdentity()
	next := newAuthority(t, "next")
	p.write("ca.crt", string(bundleOf(p.ca, next)))
	p.until("followed", func() bool { return string(p.mustIdentity().bundle) == string(bundleOf(p.ca, next)) })
	if !p.mustIdentity().leaf.Equal(before.leaf) {
		t.Error("a new certificate was asked for")
	}

	// What cannot be read changes nothing, and neither does a file that is gone.
	p.write("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	p.until("told", func() bool { return strings.Contains(p.log.String(), "the mounted trust bundle is not good") })
	if err := os.Remove(p.path("ca.crt")); err != nil {
		t.Fatal(err)
	}
	if got := string(p.mustIdentity().bundle); got != string(bundleOf(p.ca, next)) {
		t.Errorf("the bundle is now %s", got)
	}

	// The old root goes: the certificate is worth nothing, so there is a new one at once.
	p.service.set(func() { p.service.signer, p.service.bundle = next, bundleOf(next) })
	p.service.stop()
	p.service.start(t, next)
	p.write("ca.crt", string(bundleOf(next)))
	p.until("renewed", func() bool {
		f, err := p.identity()
		return err == nil && string(f.bundle) == string(bundleOf(next)) && f.leaf.CheckSignatureFrom(next.cert) == nil
	})
}

// TestLateController has a replica that has not heard of the rotation sign with the root
// that is gone: its answer must not be used, for peers would refuse it for hours.
func TestLateController(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	next := newAuthority(t, "next")
	p.write("ca.crt", string(bundleOf(p.ca, next)))
	p.service.bundle = bundleOf(p.ca, next)
	p.service.start(t, next)
	p.start()
	p.untilReady()
	p.write("ca.crt", string(bundleOf(next)))
	p.until("refusing", func() bool { return p.metric(`outrigger_agent_certificate_failures_total{reason="answer"}`) != "" })
	p.service.set(func() { p.service.signer = next })
	p.until("renewed", func() bool {
		f, err := p.identity()
		return err == nil && f.leaf.CheckSignatureFrom(next.cert) == nil && string(f.bundle) == string(bundleOf(next))
	})
}

// TestAnswerIsNewerThanTheFile: the kubelet takes a minute or two to bring a ConfigMap's
// change, so an answer may hold a root that the file does not have yet.
func TestAnswerIsNewerThanTheFile(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	next := newAuthority(t, "next")
	p.service.signer, p.service.bundle = next, bundleOf(p.ca, next)
	p.serve()
	p.start()
	p.untilReady()
	if got := string(p.mustIdentity().bundle); got != string(bundleOf(p.ca, next)) {
		t.Errorf("the bundle is %s", got)
	}
}

func TestRestartUsesWhatIsThere(t *testing.T) {
	for name, mounted := range map[string]bool{"with a mounted bundle": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			p.serve()
			p.start()
			p.untilReady()
			before := p.mustIdentity().leaf
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.exit()
			p.service.stop()
			if !mounted {
				if err := os.Remove(p.path("ca.crt")); err != nil {
					t.Fatal(err)
				}
			}
			p.start()
			p.untilReady()
			if !p.mustIdentity().leaf.Equal(before) {
				t.Error("there is another certificate, from nowhere")
			}
			p.serve()
			p.until("renewed", func() bool { return !p.mustIdentity().leaf.Equal(before) })
		})
	}
}

func TestRestartRefusesWhatIsNotGood(t *testing.T) {
	for name, prepare := range map[string]func(*pod){
		"another pod":  func(p *pod) { p.env["POD_UID"] = "another" },
		"another root": func(p *pod) { p.write("ca.crt", string(bundleOf(newAuthority(t, "root")))) },
		"no key":       func(p *pod) { p.write("identity/..data/key.pem", "") },
		"another key": func(p *pod) {
			_, key, err := newKey()
			if err != nil {
				t.Fatal(err)
			}
			p.write("identity/..data/key.pem", string(key))
		},
		"no bundle": func(p *pod) { p.write("identity/..data/bundle.pem", "") },
		"its end":   (*pod).untilEnd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			if name == "its end" {
				p.service.life = time.Second
			}
			p.serve()
			p.start()
			p.until("an identity", func() bool { _, err := p.identity(); return err == nil })
			p.service.stop()
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.exit()
			prepare(p)
			p.start()
			p.until("asking", func() bool { return p.metric(`outrigger_agent_certificate_failures_total{reason="unavailable"}`) != "" })
			if _, text := p.ask("GET", "/ready"); text != "the pod has no certificate yet" {
				t.Errorf("/ready: %s", text)
			}
		})
	}
}

func TestTrust(t *testing.T) {
	const mount, answer = "mount", "answer"
	type step struct{ source, roots, want string }
	for name, steps := range map[string][]step{
		"the file is ahead":       {{mount, "a", "a"}, {answer, "a", "a"}, {mount, "ab", "ab"}, {mount, "b", "b"}},
		"the answer is ahead":     {{mount, "a", "a"}, {answer, "ab", "ab"}, {mount, "ab", "ab"}, {mount, "b", "b"}},
		"an old file comes late":  {{mount, "xa", "xa"}, {answer, "ab", "xab"}, {mount, "a", "ab"}, {mount, "ab", "ab"}, {mount, "b", "b"}},
		"the file jumps":          {{mount, "a", "a"}, {answer, "ab", "ab"}, {mount, "b", "b"}},
		"answers only":            {{answer, "a", "a"}, {answer, "ab", "ab"}, {answer, "b", "b"}},
		"an answer lost a root":   {{mount, "ab", "ab"}, {answer, "b", "ab"}, {mount, "b", "b"}},
		"a controller is late":    {{mount, "ab", "ab"}, {mount, "b", "b"}, {answer, "ab", "b"}, {answer, "abc", "bc"}},
		"a root comes back":       {{mount, "ab", "ab"}, {mount, "b", "b"}, {answer, "ab", "b"}, {mount, "ab", "ab"}, {mount, "b", "b"}},
		"it goes for good":        {{mount, "a", "a"}, {mount, "b", "b"}, {mount, "c", "c"}, {answer, "abc", "c"}, {mount, "ca", "ca"}, {answer, "a", "ca"}},
		"an answer takes another": {{mount, "a", "a"}, {answer, "ab", "ab"}, {answer, "ac", "ac"}},
	} {
		t.Run(name, func(t *testing.T) {
			var trusted trust
			for i, s := range steps {
				var roots []root
				for _, r := range s.roots {
					roots = append(roots, root(string(r)))
				}
				if s.source == mount {
					trusted.mount(roots)
				} else {
					trusted.answer(roots)
				}
				got := ""
				for _, r := range append(append([]root(nil), trusted.mounted...), trusted.answered...) {
					got += string(r)
				}
				if got != s.want {
					t.Fatalf("after step %d, %s %s: trusted are %q, want %q", i, s.source, s.roots, got, s.want)
				}
			}
		})
	}
}
