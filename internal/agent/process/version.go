package process

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

// versionWithin is how long the proxy's program may take to print its version. maxVersion is the
// length of a version, in bytes.
const versionWithin, maxVersion = 10 * time.Second, 64

// Version returns the version that the proxy's program last printed, empty if it is unknown.
func (p *Proxy) Version() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version
}

// FindVersion asks the program on the proxy's host for its version. Another container of the pod
// may have another one.
func (p *Proxy) FindVersion() {
	if len(p.printVersion) == 0 {
		return
	}
	host := p.currentHost()
	text, err := outputOn(context.Background(), host, p.printVersion, versionWithin)
	version := versionIn(text)
	if version == "" {
		p.log.Warn("the version of the proxy is not known", "command", strings.Join(p.printVersion, " "), "output", kit.OneLine(text), "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.host == host {
		p.version = version
	}
}

// versionIn returns the first word that begins like a version, such as 2.6.12-1. If the text also
// has the word OpenSSL before a version, the last one follows: 2.6.12-1 OpenSSL 3.0.19. A program
// that prints two names first the one that it was built with.
func versionIn(text string) string {
	const library = "OpenSSL"
	var own, of, former string
	for word := range strings.FieldsSeq(text) {
		if isVersion(word) {
			own = cmp.Or(own, word)
			if former == library {
				of = " " + library + " " + word
			}
		}
		former = word
	}
	if own == "" {
		return ""
	}
	version := own + of
	return version[:min(len(version), maxVersion)]
}

func isVersion(word string) bool {
	major, minor, ok := strings.Cut(strings.TrimPrefix(word, "v"), ".")
	return ok && isDigits(major) && minor != "" && isDigits(minor[:1])
}

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
