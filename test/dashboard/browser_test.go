package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a page in a headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu sync.Mutex
	// faults are errors of the page, and requests are the addresses that it loads.
	faults, requests []string
}

// newBrowser starts a Chromium, or skips the test if there is none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: it needs Chromium; run 'make test-all'")
	}
	program := os.Getenv("CHROMIUM")
	if program == "" {
		found, err := exec.LookPath("chromium")
		if err != nil {
			t.Skip("SKIPPED: there is no Chromium; install the package chromium, or set CHROMIUM to the program's path")
		}
		program = found
	}
	// The default options include flags for tests that a user's browser does not have.
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.NoFirstRun, chromedp.WindowSize(1400, 850), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.WSURLReadTimeout(time.Minute),
	}
	allocator, endAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		// A graceful end, so that the folder of its data can be removed.
		_ = chromedp.Cancel(ctx)
		end()
		endAllocator()
	})
	b := &browser{t: t, ctx: ctx}
	// The first call starts the browser, which ends with its context.
	err := chromedp.Do(ctx, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, networkErr := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		_, logErr := cdp.Call(ctx, target, log.Enable, cdp.Empty{})
		return errors.Join(networkErr, logErr)
	}))
	if err := errors.Join(err, chromedp.Listen(ctx, b.listen)); err != nil {
		t.Fatalf("starting Chromium: %v", err)
	}
	return b
}

func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			b.faults = append(b.faults, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// check fails if the page had an error, or loaded anything from elsewhere.
func (b *browser) check(server string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		b.t.Errorf("the page has an error: %s", fault)
	}
	for _, request := range b.requests {
		if !strings.HasPrefix(request, server) {
			b.t.Errorf("the page loads %s", request)
		}
	}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("the browser: %v", err)
	}
}

func (b *browser) open(address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(address))
}

// eval returns the value of an expression in the page, which may be a promise.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// click clicks the first element that a CSS selector finds and whose text begins with the
// given one.
func (b *browser) click(selector, text string) {
	b.t.Helper()
	b.eventually(selector, 20*time.Second, func() error {
		if !eval[bool](b, fmt.Sprintf(`(e => { e?.click(); return !!e })([...document.querySelectorAll(%q)].find(e => e.textContent.startsWith(%q)))`, selector, text)) {
			return fmt.Errorf("there is no %q", text)
		}
		return nil
	})
}

// eventually waits until the check has no error.
func (b *browser) eventually(what string, within time.Duration, check func() error) {
	b.t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// sees waits for a text in the elements of a selector.
func (b *browser) sees(selector string, texts ...string) {
	b.t.Helper()
	b.eventually(selector, 20*time.Second, func() error {
		found := eval[string](b, fmt.Sprintf("[...document.querySelectorAll(%q)].map(e => e.innerText).join('\\n')", selector))
		for _, text := range texts {
			if !strings.Contains(found, text) {
				return fmt.Errorf("no %q in %q", text, found)
			}
		}
		return nil
	})
}

// line is an edge of the graph.
type line struct {
	ID, Source, Target, Label, Classes string
}

// lines returns the edges of the graph.
func (b *browser) lines() []line {
	b.t.Helper()
	return eval[[]line](b, `(document.querySelector('.graph')?._cyreg?.cy.edges().map(e => ({
		ID: e.id(), Source: e.data('source'), Target: e.data('target'), Label: e.data('label'), Classes: e.classes().join(' '),
	})) ?? [])`)
}

// line waits for an edge whose label has the text.
func (b *browser) line(class, source, target, label string, within time.Duration) line {
	b.t.Helper()
	var found line
	b.eventually("edge from "+source+" to "+target, within, func() error {
		all := b.lines()
		for _, l := range all {
			if l.Source == source && l.Target == target && strings.Contains(l.Classes, class) && strings.Contains(l.Label, label) {
				found = l
				return nil
			}
		}
		return fmt.Errorf("no %s with %q in %+v", class, label, all)
	})
	return found
}

// choose selects an element of the graph, as a click does.
func (b *browser) choose(id string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf("document.querySelector('.graph')._cyreg.cy.getElementById(%q).emit('tap').nonempty()", id))
}

// shoot writes a picture of the page for the documentation, if UPDATE is set.
func (b *browser) shoot(name string) {
	b.t.Helper()
	if os.Getenv("UPDATE") == "" {
		return
	}
	// Animations of the page have an end.
	time.Sleep(time.Second)
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("..", "..", "docs", "images", name), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
