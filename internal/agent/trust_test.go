package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMountedBundleIsAHint checks that a change of the file causes a request at once, and
// that the answer is trusted, not the file.
func TestMountedBundleIsAHint(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	next := newAuthority(t, "next")
	p.service.set(func() { p.service.bundle = bundleOf(p.ca, next) })
	p.write("ca.crt", string(bundleOf(p.ca, next)))
	p.until("followed", func() bool { return string(p.mustIdentity().bundle) == string(bundleOf(p.ca, next)) })

	// An invalid or missing file changes nothing.
	p.write("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	p.until("logged", func() bool { return strings.Contains(p.log.String(), "the mounted trust bundle is invalid") })
	if err := os.Remove(p.path("ca.crt")); err != nil {
		t.Fatal(err)
	}
	if got := string(p.mustIdentity().bundle); got != string(bundleOf(p.ca, next)) {
		t.Errorf("the bundle is now %s", got)
	}

	// The old root is removed.
	p.service.set(func() { p.service.signer, p.service.bundle = next, bundleOf(next) })
	p.service.stop()
	p.service.start(t, next)
	p.write("ca.crt", string(bundleOf(next)))
	p.until("renewed", func() bool {
		f, err := p.identity()
		return err == nil && string(f.bundle) == string(bundleOf(next)) && f.leaf.CheckSignatureFrom(next.cert) == nil
	})
}

// TestMountedBundleVouchesForNobody adds an attacker's root to the file, as a user who may
// change the namespace's ConfigMaps could.
func TestMountedBundleVouchesForNobody(t *testing.T) {
	for name, keep := range map[string]bool{"beside the mesh's": true, "in its place": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPod(t)
			p.serve()
			p.start()
			p.untilReady()
			evil := bundleOf(newAuthority(t, "evil"))
			if keep {
				evil = append(bundleOf(p.ca), evil...)
			}
			want := string(bundleOf(p.ca))
			first := p.mustIdentity().leaf
			p.write("ca.crt", string(evil))
			p.until("another answer", func() bool {
				f := p.mustIdentity()
				if string(f.bundle) != want {
					t.Fatalf("peers are verified by\n%s", f.bundle)
				}
				return !f.leaf.Equal(first)
			})
			// Nor after a restart within the pod.
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.exit()
			again := p.mustIdentity().leaf
			p.start()
			p.untilReady()
			p.until("renewed", func() bool {
				f := p.mustIdentity()
				if string(f.bundle) != want {
					t.Fatalf("after a restart peers are verified by\n%s", f.bundle)
				}
				return !f.leaf.Equal(again)
			})
		})
	}
}

// TestMountedBundleThatChangesAlways checks that frequent changes of the file cause a
// bounded number of requests.
func TestMountedBundleThatChangesAlways(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	before, began := len(p.service.asked()), time.Now()
	for i := range 40 {
		p.write("ca.crt", string(bundleOf(newAuthority(t, fmt.Sprint("evil", i)))))
		time.Sleep(25 * time.Millisecond)
	}
	asked := len(p.service.asked()) - before
	if most := 2 + int(time.Since(began)/testTimings.Hint.First); asked == 0 || asked > most {
		t.Errorf("in %s the signing service was asked %d times, want at least once and at most %d times", time.Since(began), asked, most)
	}
}

// TestContactAfterLong checks that a pod that missed a rotation of the mesh's roots recovers
// through the mounted file, and only through that.
func TestContactAfterLong(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	next := newAuthority(t, "next")
	p.service.stop()
	p.service.set(func() { p.service.signer, p.service.bundle = next, bundleOf(next) })
	p.service.start(t, next)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.exit()
	p.start()
	p.until("refusing", func() bool {
		return p.metric(`outrigger_agent_certificate_failures_total{reason="unavailable"}`) != ""
	})
	if got := string(p.mustIdentity().bundle); got != string(bundleOf(p.ca)) {
		t.Errorf("a controller that nothing verifies was believed: %s", got)
	}
	if len(p.service.asked()) != 1 {
		t.Error("a controller that nothing verifies was shown the token")
	}
	p.write("ca.crt", string(bundleOf(next)))
	p.until("renewed", func() bool { return string(p.mustIdentity().bundle) == string(bundleOf(next)) })
	p.until("saying so", func() bool { return strings.Contains(p.log.String(), "was verified by the mounted trust bundle") })
}

// TestLateController lets a replica that missed the rotation sign with the removed root.
// Peers would reject that certificate for hours, so another one is requested.
func TestLateController(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	next := newAuthority(t, "next")
	p.write("ca.crt", string(bundleOf(p.ca, next)))
	p.service.bundle = bundleOf(p.ca, next)
	p.service.start(t, next)
	p.start()
	p.untilReady()
	before := len(p.service.asked())
	p.write("ca.crt", string(bundleOf(next)))
	p.until("asking again", func() bool { return len(p.service.asked()) > before+1 })
	p.service.set(func() { p.service.signer, p.service.bundle = next, bundleOf(next) })
	p.until("renewed", func() bool {
		f, err := p.identity()
		return err == nil && f.leaf.CheckSignatureFrom(next.cert) == nil && string(f.bundle) == string(bundleOf(next))
	})
	// After that there are no more requests.
	before = len(p.service.asked())
	time.Sleep(2 * testTimings.Hint.Most)
	if asked := len(p.service.asked()) - before; asked > 0 {
		t.Errorf("%d certificates were asked for without need", asked)
	}
}

// TestAnswerIsNewerThanTheFile tests an answer with a root that the file does not have yet,
// since the kubelet takes a minute or two to update mounted ConfigMaps.
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
		"another root": func(p *pod) { p.write("identity/..data/bundle.pem", string(bundleOf(newAuthority(t, "root")))) },
		"no key":       func(p *pod) { p.write("identity/..data/key.pem", "") },
		"another key": func(p *pod) {
			key, err := newKeyPEM()
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
