package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// translateRules are the rules for Translate.
var translateRules = []rule{
	{
		name:  "translator",
		why:   "A driver implements driver.Translator, so that people can see a proxy's configuration in advance (outrigger translate), and the suite can test it. Only drivers that serve nothing need no Translator.",
		check: translates,
	},
	{
		name:  "every_view",
		why:   "Translate returns a configuration for every View, from a proxy without any destinations and inbound ports to one that requires every feature. It returns no error for what the proxy does not support, which is already a Problem of the user, and never panics: one user's objects must not keep others without a configuration.",
		check: translateEvery,
	},
	{
		name:  "pure",
		why:   "Equal Views give equal bytes: repeatedly, from concurrent goroutines, on one CPU and on many, in another year, whatever was translated before, and when all parts of the View were made anew, as after an unrelated change of the mesh. Then replicas and restarts agree, and unchanged configuration is not sent again. Beware of ranging over a map, of the clock, and of incomplete cache keys.",
		check: translatePure,
	},
	{
		name:  "view_kept",
		why:   "Translate changes nothing in the View. Its parts are shared with the Views of other proxies.",
		check: translateKeeps,
	},
	{
		name:  "files",
		why:   "File names are relative paths with slashes, without duplicates and in a stable order, and the content is text. outrigger translate shows the files, and golden files store them.",
		check: translateFiles,
	},
	{
		name:  "no_secret",
		why:   "No file contains a private key. The agent creates a workload's key in its pod and stores it as a file, which the configuration refers to by name.",
		check: translateNoSecret,
	},
	{
		name:  "scalars",
		why:   "Text that a user writes, such as the expression of a path, ends up as one value, whatever it contains: newlines, quotes, braces. Otherwise anybody who may write a policy could write any part of a proxy's configuration.",
		check: translateScalars,
	},
	{
		name:  "differs",
		why:   "The content of a View affects the configuration: who may call, what may be called, its endpoints and their names. A configuration that ignores such changes is wrong.",
		check: translateDiffers,
	},
	{
		name:  "closed",
		why:   "Only Anyone admits everybody. With an audit but without Anyone, the configuration is not the one with both, which lets through what the rules refuse.",
		check: translateCloses,
	},
}

// namedView is a View of the built-in mesh.
type namedView struct {
	name string
	view *mesh.View
}

// fewViews is the number of leading views that cover nearly everything.
const fewViews = 5

// views returns all Views of the built-in mesh, made anew.
func views() []namedView {
	all := []namedView{
		{"an empty View", empty().view()},
		{"a plain View", plain().view()},
		{"a View that asks for everything", everything().view()},
		{"a View with text that means something elsewhere", injecting().view()},
		{"a View of an unknown protocol", unknown().view()},
	}
	for _, v := range variants() {
		all = append(all, namedView{"a View that asks for " + v.String(), v.view(v.asks)})
	}
	return all
}

// unknown returns a draft with values of a later version of the mesh.
func unknown() *draft {
	d := plain()
	d.cart().destination.Protocol, d.cart().backend.Protocol, d.web().Protocol = "later", "later", "later"
	d.cart().backend.Policy.LoadBalancing.Policy = "Later"
	d.egress.Ports = []mesh.EgressRoutes{{Port: 9999, Protocol: "later"}}
	d.settings.Tracing = &mesh.Tracing{Protocol: "later", Host: "collector.example.com", Port: 1}
	return d
}

// translate calls Translate and returns its files, or none if the driver has no
// Translator.
func (s subject) translate(view *mesh.View) (files []driver.File, err error) {
	translator, ok := s.driver.(driver.Translator)
	if !ok {
		return nil, nil
	}
	err = s.call("Translate", func() (err error) {
		files, err = translator.Translate(view)
		return err
	})
	return files, err
}

// text returns all files as a single text.
func (s subject) text(view *mesh.View) (string, error) {
	files, err := s.translate(view)
	var text strings.Builder
	for _, f := range files {
		fmt.Fprintf(&text, "-- %s --\n%s\n", f.Name, f.Content)
	}
	return text.String(), err
}

// ofEach translates each View and returns the joined errors of check.
func (s subject) ofEach(check func(files []driver.File) error) error {
	var errs []error
	for _, v := range views() {
		files, err := s.translate(v.view)
		if err == nil {
			err = check(files)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
	}
	return errors.Join(errs...)
}

func translates(s subject) error {
	if _, ok := s.driver.(driver.Translator); ok {
		return nil
	}
	started, err := s.start(0)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer started.end()
	conn, err := net.DialTimeout("tcp", address(started.port), s.limit)
	if err != nil {
		return nil
	}
	conn.Close()
	return fmt.Errorf("%T serves proxies at its port, but has no method Translate(*mesh.View) ([]driver.File, error)", s.driver)
}

func translateEvery(s subject) error {
	return s.ofEach(func([]driver.File) error { return nil })
}

func translatePure(s subject) error {
	want := map[string]string{}
	for _, v := range views() {
		text, err := s.text(v.view)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		want[v.name] = text
	}
	var mutex sync.Mutex
	var errs []error
	// again translates new Views in the given order.
	again := func(when string, order func([]namedView)) {
		all := views()
		order(all)
		for _, v := range all {
			text, err := s.text(v.view)
			if err == nil && text != want[v.name] {
				err = fmt.Errorf("the bytes differ: %s", firstDifference(want[v.name], text))
			}
			if err != nil {
				mutex.Lock()
				errs = append(errs, fmt.Errorf("%s, %s: %w", v.name, when, err))
				mutex.Unlock()
				return
			}
		}
	}
	unordered := func([]namedView) {}
	again("the second time", unordered)
	again("after others than before", slices.Reverse[[]namedView])
	before := runtime.GOMAXPROCS(1)
	again("on one CPU", unordered)
	runtime.GOMAXPROCS(max(4, before))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			again("from 8 goroutines at once", func(all []namedView) { slices.Reverse(all[:len(all)*i/8]) })
		})
	}
	group.Wait()
	runtime.GOMAXPROCS(before)
	if s.t != nil {
		// The clock of a bubble shows another year.
		synctest.Test(s.t, func(*testing.T) { again("in another year", unordered) })
	}
	return errors.Join(errs...)
}

// firstDifference returns the first pair of lines that differ.
func firstDifference(a, b string) string {
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(left), len(right)) {
		var was, is string
		if i < len(left) {
			was = left[i]
		}
		if i < len(right) {
			is = right[i]
		}
		if was != is {
			return fmt.Sprintf("line %d was %s and is %s", i+1, around(was, is), around(is, was))
		}
	}
	return "none"
}

// around returns the part of a line where it starts to differ from the other.
func around(line, other string) string {
	const before, after = 40, 120
	at := 0
	for at < min(len(line), len(other)) && line[at] == other[at] {
		at++
	}
	return strconv.Quote(line[max(0, at-before):min(len(line), at+after)])
}

func translateKeeps(s subject) error {
	for _, v := range views() {
		before := toJSON(v.view)
		if _, err := s.translate(v.view); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		if after := toJSON(v.view); after != before {
			return fmt.Errorf("a call of Translate changed %s from\n%s\nto\n%s", v.name, before, after)
		}
	}
	return nil
}

func translateFiles(s subject) error {
	return s.ofEach(func(files []driver.File) error {
		seen := map[string]bool{}
		for _, f := range files {
			switch {
			case f.Name == "" || path.IsAbs(f.Name) || path.Clean(f.Name) != f.Name || f.Name == ".." || strings.HasPrefix(f.Name, "../") || strings.Contains(f.Name, `\`):
				return fmt.Errorf("the name %q is not a clean relative path with slashes", f.Name)
			case seen[f.Name]:
				return fmt.Errorf("there are two files with the name %s", f.Name)
			case !utf8.Valid(f.Content) || bytes.IndexByte(f.Content, 0) >= 0:
				return fmt.Errorf("file %s is not text", f.Name)
			}
			seen[f.Name] = true
		}
		return nil
	})
}

func translateNoSecret(s subject) error {
	return s.ofEach(func(files []driver.File) error {
		for _, f := range files {
			if bytes.Contains(f.Content, []byte("PRIVATE KEY-----")) {
				return fmt.Errorf("file %s holds a private key", f.Name)
			}
		}
		return nil
	})
}

func translateScalars(s subject) error {
	files, err := s.translate(injecting().view())
	if err != nil {
		return err
	}
	for _, f := range files {
		for i, line := range strings.FieldsFunc(string(f.Content), func(c rune) bool { return c == '\n' || c == '\r' }) {
			if strings.HasPrefix(strings.TrimSpace(line), injected) {
				return fmt.Errorf("file %s: the path expression %q has started a new line, about line %d: %.200q", f.Name, injectingText, i+1, line)
			}
		}
	}
	return nil
}

const portsThatNothingNames = "who may call ports that nothing names"

// translateDiffers changes what any proxy must follow. It is skipped for drivers whose
// proxies get no configuration.
func translateDiffers(s subject) error {
	files, err := s.translate(plain().view())
	if err != nil || len(files) == 0 {
		return err
	}
	before, err := s.text(plain().view())
	if err != nil {
		return err
	}
	caller := mesh.Identity{TrustDomain: trustDomain, Namespace: "bank", ServiceAccount: "teller"}
	var errs []error
	for _, change := range []struct {
		what string
		make func(*draft)
	}{
		{"an endpoint's address", func(d *draft) { d.cart().backend.Endpoints[0].Addresses = d.db().destination.Addresses }},
		{"an endpoint's port", func(d *draft) { d.cart().backend.Endpoints[0].Port = 8089 }},
		{"the name by which an endpoint is verified", func(d *draft) { d.cart().backend.Endpoints[0].ServerName = "other.shop.sa." + trustDomain }},
		{"the endpoints of a service for TCP", func(d *draft) { d.db().backend.Endpoints = nil }},
		{"the weights of a split", func(d *draft) { d.cart().destination.Routes[0].Backends[0].Weight = 7 }},
		{"the address of a service", func(d *draft) { d.cart().destination.Addresses = []netip.Addr{netip.MustParseAddr("10.96.0.77")} }},
		{"the path of a route", func(d *draft) {
			routes := d.cart().destination.Routes
			d.cart().destination.Routes = slices.Insert(routes, 0, mesh.Route{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/rare"}}, Backends: routes[0].Backends[1:]})
		}},
		{"who may call by HTTP", func(d *draft) { d.web().Access.Rules[0].Sources[0] = caller }},
		{"which paths may be called", func(d *draft) { d.web().Access.Rules[0].Requests[0].Path.Regex = "/other/.*" }},
		{"which methods may be called", func(d *draft) { d.web().Access.Rules[0].Requests[0].Methods = []string{"GET"} }},
		{"who may call by TCP", func(d *draft) { d.sql().Access.Rules[0].Sources[0] = caller }},
		{"that nobody may call by TCP", func(d *draft) { d.sql().Access = mesh.Access{} }},
		{"that everybody of the mesh may call", func(d *draft) { d.web().Access = mesh.Access{Anyone: true} }},
		{portsThatNothingNames, func(d *draft) { d.inbound.Others = allow(caller, mesh.HTTPMatch{}) }},
	} {
		d := plain()
		change.make(d)
		after, err := s.text(d.view())
		// Without a proxy, only named ports are open.
		closed := s.proxyless() && change.what == portsThatNothingNames
		switch {
		case err == nil && after == before && !closed:
			err = errors.New("the configuration is the same")
		case err == nil && after != before && closed:
			err = errors.New("the configuration differs, although a driver without a proxy closes them")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("a change of %s: %w", change.what, err))
		}
	}
	return errors.Join(errs...)
}

// translateCloses compares an audit that lets everybody through with one that does not.
func translateCloses(s subject) error {
	const unnamed = "ports that nothing names"
	var errs []error
	for _, at := range []struct {
		what string
		set  func(*draft, mesh.Access)
	}{
		{"an HTTP port", func(d *draft, a mesh.Access) { d.web().Access = a }},
		{"a TCP port", func(d *draft, a mesh.Access) { d.sql().Access = a }},
		{unnamed, func(d *draft, a mesh.Access) { d.inbound.Others = a }},
	} {
		opened, closed := plain(), plain()
		at.set(opened, mesh.Access{Anyone: true, Audit: true})
		at.set(closed, mesh.Access{Audit: true})
		before, err := s.text(opened.view())
		if err != nil {
			return err
		}
		after, err := s.text(closed.view())
		if err != nil {
			return err
		}
		// Without a proxy, only named ports are open.
		if before == after && before != "" && (at.what != unnamed || !s.proxyless()) {
			errs = append(errs, fmt.Errorf("an audit without Anyone, at %s: the configuration is the one that admits everybody", at.what))
		}
	}
	return errors.Join(errs...)
}
