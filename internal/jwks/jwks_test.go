package jwks

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	keyX = `{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	keys = `{"keys": [` + keyX + `]}`
)

// issuer is a server with keys, whose certificate is for example.com and 127.0.0.1.
type issuer struct {
	*httptest.Server
	port string
	// requests are those that reached a handler, and connections those that were accepted.
	requests, connections atomic.Int32
}

func newIssuer(t *testing.T, handler http.HandlerFunc) *issuer {
	t.Helper()
	i := &issuer{}
	i.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.requests.Add(1)
		handler(w, r)
	}))
	i.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	i.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			i.connections.Add(1)
		}
	}
	i.StartTLS()
	t.Cleanup(i.Close)
	_, i.port, _ = net.SplitHostPort(i.Listener.Addr().String())
	return i
}

// hosts returns what a MeshConfig allows; PORT in an entry is the issuer's port.
func (i *issuer) hosts(t *testing.T, hosts, inside string) *source.KeyHosts {
	t.Helper()
	config := &v1alpha2.MeshConfig{}
	list := func(text string) []string { return strings.Fields(strings.ReplaceAll(text, "PORT", i.port)) }
	config.Spec.Traffic.TokenKeys = v1alpha2.TokenKeysSpec{
		Hosts: list(hosts), InsideHosts: list(inside),
		CABundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})),
	}
	made := source.NewConfig(config, source.ConfigOptions{
		Classes: []string{"envoy"}, BuiltinImage: func(string, string) string { return "" }, Env: func(string) string { return "" },
	})
	for _, p := range made.Problems() {
		if strings.HasPrefix(p.Field, "spec.traffic.tokenKeys") {
			t.Fatalf("the MeshConfig has the Problem %v", p)
		}
	}
	return made.KeyHosts()
}

// resolver answers with the next of some answers to each query, and repeats the last one.
type resolver struct {
	mu      sync.Mutex
	answers []string
	queries []string
}

func (r *resolver) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queries = append(r.queries, host)
	if len(r.answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	answer := r.answers[0]
	if len(r.answers) > 1 {
		r.answers = r.answers[1:]
	}
	var list []netip.Addr
	for text := range strings.FieldsSeq(answer) {
		list = append(list, netip.MustParseAddr(text))
	}
	return list, nil
}

// TestFetch fetches from servers, most of which are hostile. PORT is the server's port.
func TestFetch(t *testing.T) {
	t.Parallel()
	serve := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	const host = "example.com:PORT"
	const url = "https://example.com:PORT/keys"
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, port, _ := net.SplitHostPort(r.Host)
			if r.URL.Path == "/moved" {
				_, _ = io.WriteString(w, keys)
				return
			}
			http.Redirect(w, r, strings.ReplaceAll(to, "PORT", port), http.StatusFound)
		}
	}
	discovery := func(configuration string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, port, _ := net.SplitHostPort(r.Host)
			if r.URL.Path == "/.well-known/openid-configuration" {
				_, _ = io.WriteString(w, strings.ReplaceAll(configuration, "PORT", port))
				return
			}
			_, _ = io.WriteString(w, keys)
		}
	}
	const configuration = "https://example.com:PORT/.well-known/openid-configuration"
	const other = "https://example.com:PORT"
	for name, tt := range map[string]struct {
		handler       http.HandlerFunc
		hosts, inside string
		address       fact.KeyAddress
		// answers are the DNS server's, one a query; without any they are the server's address.
		answers []string
		keys    int
		// err is a part of the message, and requests are how many may reach the server.
		err      string
		requests int32
	}{
		"keys":                          {serve(keys), "", host, fact.KeyAddress{URL: url}, nil, 1, "", 1},
		"keys of a name below, inside":  {serve(keys), "*.example.com:PORT", "login.example.com:PORT", fact.KeyAddress{URL: "https://login.example.com:PORT/"}, nil, 1, "", 1},
		"no keys any more":              {serve(`{"keys": []}`), "", host, fact.KeyAddress{URL: url}, nil, 0, "", 1},
		"a host in capitals":            {serve(keys), "", host, fact.KeyAddress{URL: "https://Example.COM:PORT/keys"}, nil, 1, "", 1},
		"a name above":                  {serve(keys), "*.example.com:PORT", "", fact.KeyAddress{URL: url}, nil, 0, "does not allow", 0},
		"a name below, at loopback":     {serve(keys), "*.example.com:PORT", "", fact.KeyAddress{URL: "https://login.example.com:PORT/"}, nil, 0, "not public", 0},
		"a host that is not allowed":    {serve(keys), "other.com:PORT", "", fact.KeyAddress{URL: url}, nil, 0, "does not allow", 0},
		"a port that is not allowed":    {serve(keys), "example.com", "example.com", fact.KeyAddress{URL: url}, nil, 0, "does not allow", 0},
		"a name that ends like another": {serve(keys), "*.example.com:PORT", "", fact.KeyAddress{URL: "https://loginexample.com:PORT/"}, nil, 0, "does not allow", 0},
		"1 MB":                          {serve(`{"keys": [` + keyX + strings.Repeat(`,`+keyX, 10000) + `]}`), "", host, fact.KeyAddress{URL: url}, nil, 0, "longer than 64 KiB", 1},
		"no JSON":                       {serve("<html>"), "", host, fact.KeyAddress{URL: url}, nil, 0, "no JSON Web Key Set", 1},
		"cut in half":                   {serve(keys[:len(keys)/2]), "", host, fact.KeyAddress{URL: url}, nil, 0, "no JSON Web Key Set", 1},
		"an object without keys":        {serve(`{"error": "later"}`), "", host, fact.KeyAddress{URL: url}, nil, 0, "no JSON Web Key Set", 1},
		"cut by the network": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, keys)
		}, "", host, fact.KeyAddress{URL: url}, nil, 0, "ended too early", 1},
		"a failure": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, keys)
		}, "", host, fact.KeyAddress{URL: url}, nil, 0, "status 503", 1},
		"slow to begin": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "", host, fact.KeyAddress{URL: url}, nil, 0, "in time", 1},
		"slow": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}, "", host, fact.KeyAddress{URL: url}, nil, 0, "in time", 1},
		"long headers": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
			_, _ = io.WriteString(w, keys)
		}, "", host, fact.KeyAddress{URL: url}, nil, 0, "cannot be reached", 1},
		"a redirect within the host":       {redirect("/moved"), "", host, fact.KeyAddress{URL: url}, nil, 1, "", 2},
		"a redirect to loopback":           {redirect("https://127.0.0.1:PORT/moved"), "", host + " 127.0.0.1:PORT", fact.KeyAddress{URL: url}, nil, 0, "another host", 1},
		"a redirect to plaintext":          {redirect("http://example.com:PORT/moved"), "", host, fact.KeyAddress{URL: url}, nil, 0, "another host", 1},
		"a redirect with a user":           {redirect("https://a:b@example.com:PORT/moved"), "", host, fact.KeyAddress{URL: url}, nil, 0, "another host", 1},
		"a redirect to a file":             {redirect("file:///etc/passwd"), "", host, fact.KeyAddress{URL: url}, nil, 0, "another host", 1},
		"a circle":                         {redirect("/again"), "", host, fact.KeyAddress{URL: url}, nil, 0, "more than 3 times", 4},
		"loopback":                         {serve(keys), host, "", fact.KeyAddress{URL: url}, nil, 0, "not public", 0},
		"loopback by address":              {serve(keys), "127.0.0.1:PORT", "", fact.KeyAddress{URL: "https://127.0.0.1:PORT/"}, nil, 0, "not public", 0},
		"loopback by address, allowed":     {serve(keys), "", "127.0.0.1:PORT", fact.KeyAddress{URL: "https://127.0.0.1:PORT/"}, nil, 1, "", 1},
		"a mapped address":                 {serve(keys), host, "", fact.KeyAddress{URL: url}, []string{"::ffff:127.0.0.1"}, 0, "not public", 0},
		"one public address and one not":   {serve(keys), host, "", fact.KeyAddress{URL: url}, []string{"8.8.8.8 127.0.0.1"}, 0, "not public", 0},
		"an unknown name":                  {serve(keys), "", host, fact.KeyAddress{URL: url}, []string{}, 0, "cannot be found", 0},
		"a certificate of another name":    {serve(keys), "", "other.org:PORT", fact.KeyAddress{URL: "https://other.org:PORT/"}, nil, 0, "not valid for it", 0},
		"discovery":                        {discovery(`{"issuer": "` + other + `", "jwks_uri": "` + url + `"}`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 1, "", 2},
		"discovery of another issuer":      {discovery(`{"issuer": "https://example.com", "jwks_uri": "` + url + `"}`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 0, "another issuer", 1},
		"discovery without keys":           {discovery(`{"issuer": "` + other + `"}`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 0, "no jwks_uri", 1},
		"discovery of plaintext":           {discovery(`{"issuer": "` + other + `", "jwks_uri": "http://example.com:PORT/"}`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 0, "cannot be used", 1},
		"discovery leads to another host":  {discovery(`{"issuer": "` + other + `", "jwks_uri": "https://127.0.0.1:PORT/"}`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 0, "does not allow", 1},
		"discovery leads to a long URL":    {discovery(`{"issuer": "` + other + `", "jwks_uri": "https://example.com:PORT/` + strings.Repeat("a", 2000) + `"}`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 0, "at most 1024", 1},
		"discovery without JSON":           {discovery(`<html>`), "", host, fact.KeyAddress{URL: configuration, Issuer: other}, nil, 0, "no OpenID configuration", 1},
		"a key of the issuer that is none": {serve(`{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}`), "", host, fact.KeyAddress{URL: url}, nil, 0, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newIssuer(t, tt.handler)
			at := func(text string) string { return strings.ReplaceAll(text, "PORT", server.port) }
			answers := tt.answers
			if answers == nil {
				answers = []string{"127.0.0.1"}
			}
			c := &connector{lookup: (&resolver{answers: answers}).lookup, public: isPublic, time: 2 * time.Second}
			hosts, address := server.hosts(t, tt.hosts, tt.inside), fact.KeyAddress{URL: at(tt.address.URL), Issuer: at(tt.address.Issuer)}
			err := allowed(hosts, address)
			var set fact.KeySet
			if err == nil {
				set, err = c.fetch(t.Context(), hosts, address)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("the error is %v, want %q", err, tt.err)
			}
			if err != nil && (len(err.Error()) > 500 || strings.Contains(err.Error(), "127.0.0.1:"+server.port+":")) {
				t.Errorf("the error tells too much: %v", err)
			}
			if len(set.Keys) != tt.keys {
				t.Errorf("there are %d keys, want %d", len(set.Keys), tt.keys)
			}
			if n := server.requests.Load(); n != tt.requests {
				t.Errorf("%d requests reached the server, want %d", n, tt.requests)
			}
			if tt.requests == 0 && strings.Contains(tt.err, "not public") && server.connections.Load() > 0 {
				t.Error("there was a connection")
			}
		})
	}
}

// TestRebinding changes the answer of the DNS between the check and the connection, and between requests.
func TestRebinding(t *testing.T) {
	t.Parallel()
	server := newIssuer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, keys) })
	hosts := server.hosts(t, "example.com:PORT", "")
	names := &resolver{answers: []string{"127.0.0.2", "127.0.0.1"}}
	// 127.0.0.2 plays a public address, at which nobody answers.
	c := &connector{lookup: names.lookup, time: 2 * time.Second, public: func(a netip.Addr) bool { return a.String() == "127.0.0.2" }}
	address := fact.KeyAddress{URL: "https://example.com:" + server.port + "/"}
	if _, err := c.fetch(t.Context(), hosts, address); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("the first answer gives %v", err)
	}
	if len(names.queries) != 1 || names.queries[0] != "example.com." {
		t.Errorf("the queries of one connection are %q", names.queries)
	}
	if _, err := c.fetch(t.Context(), hosts, address); err == nil || !strings.Contains(err.Error(), "not public") {
		t.Errorf("the second answer gives %v", err)
	}
	if n := server.connections.Load(); n != 0 {
		t.Errorf("there were %d connections to loopback", n)
	}
}

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "172.16.0.1": false, "192.168.0.1": false,
		"169.254.169.254": false, "fe80::1": false, "fd00:ec2::254": false, "fc00::1": false, "100.64.0.1": false, "100.100.100.200": false,
		"::ffff:10.0.0.1": false, "::127.0.0.1": false, "64:ff9b::a00:1": false, "64:ff9b:1::1": false, "2002:a00:1::": false, "2001:0:1::": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false, "240.0.0.1": false, "0.1.2.3": false, "168.63.129.16": false, "192.0.0.192": false,
		"198.18.0.1": false, "fec0::1": false, "2001:db8::1": false, "fe80::1%eth0": false, "2606:4700::1111%eth0": false,
	} {
		if got := isPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// fetching is a Fetcher with the facts that it has applied.
type fetching struct {
	*Fetcher
	mu    sync.Mutex
	facts map[mesh.ObjectRef]*fact.TokenKeys
}

func start(t *testing.T, c *connector, period time.Duration) *fetching {
	t.Helper()
	m := &fetching{facts: map[mesh.ObjectRef]*fact.TokenKeys{}}
	m.Fetcher = New(Options{Log: slog.New(slog.DiscardHandler), connect: c, period: period, Apply: func(facts ...fact.Fact) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, f := range facts {
			if content, ok := f.Content.(*fact.TokenKeys); ok {
				m.facts[f.Object] = content
			} else {
				delete(m.facts, f.Object)
			}
		}
	}})
	m.Observe(fact.Fact{Object: mesh.ObjectRef{APIVersion: "v1", Kind: "Namespace", Name: "shop"}, Content: mesh.Seal(&fact.Namespace{Name: "shop", Member: true})})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return m
}

// policy makes a policy of the namespace with the addresses, or removes it without any.
func (m *fetching) policy(namespace, name string, addresses ...fact.KeyAddress) {
	f := fact.Fact{Object: mesh.ObjectRef{APIVersion: "outrigger.dev/v1alpha1", Kind: "TokenPolicy", Namespace: namespace, Name: name}}
	if len(addresses) > 0 {
		policy := &fact.TokenPolicy{Name: mesh.Name{Namespace: namespace, Name: name}}
		for _, address := range addresses {
			policy.Issuers = append(policy.Issuers, fact.TokenIssuer{Issuer: "i", Fetched: address})
		}
		f.Content = mesh.Seal(policy)
	}
	m.Observe(f)
}

// want waits until the keys of an address are "NUMBER REASON...", or "" for no fact.
func (m *fetching) want(t *testing.T, address fact.KeyAddress, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		m.mu.Lock()
		got = ""
		if content := m.facts[address.Object()]; content != nil {
			got = fmt.Sprint(len(content.Sets[""].Keys))
			for _, flaw := range content.Sets[""].Flaws {
				got += " " + flaw.Reason
			}
		}
		m.mu.Unlock()
		if got == want {
			return
		}
	}
	t.Fatalf("the keys of %v are %q, want %q", address, got, want)
}

// TestFetcher follows policies, the MeshConfig and the keys.
func TestFetcher(t *testing.T) {
	t.Parallel()
	var answer atomic.Value
	answer.Store(keys)
	server := newIssuer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer.Load().(string)) })
	c := &connector{lookup: (&resolver{answers: []string{"127.0.0.1"}}).lookup, public: isPublic, time: 2 * time.Second}
	m := start(t, c, 20*time.Millisecond)
	address := fact.KeyAddress{URL: "https://example.com:" + server.port + "/"}
	hosts := server.hosts(t, "", "example.com:PORT")

	// Nothing is fetched before the MeshConfig allows it, nor for a namespace outside the mesh.
	m.policy("shop", "a", address)
	m.policy("outside", "a", fact.KeyAddress{URL: address.URL + "outside"})
	m.want(t, address, "0 Disabled")
	if n := server.connections.Load(); n > 0 {
		t.Fatalf("%d connections were made without leave", n)
	}
	m.Allow(hosts)
	m.want(t, address, "1")
	m.want(t, fact.KeyAddress{URL: address.URL + "outside"}, "")

	// What fails keeps the keys, and what the issuer takes back does not.
	for _, bad := range []string{"", "<html>", keys[:20], `{}`, strings.Repeat(" ", 1<<20) + keys} {
		answer.Store(bad)
		m.want(t, address, "1 NotFetched")
		answer.Store(keys)
		m.want(t, address, "1")
	}
	answer.Store(`{"keys": []}`)
	m.want(t, address, "0 Missing")
	answer.Store("<html>")
	m.want(t, address, "0 Missing NotFetched")
	answer.Store(keys)
	m.want(t, address, "1")

	// What is no longer allowed has no keys.
	m.Allow(server.hosts(t, "example.com:PORT", ""))
	m.want(t, address, "1 NotFetched")
	m.Allow(server.hosts(t, "", ""))
	m.want(t, address, "0 Disabled")
	m.Allow(hosts)
	m.want(t, address, "1")

	// Two policies share the keys, which go with the last one.
	m.policy("shop", "b", address)
	m.policy("shop", "a")
	m.want(t, address, "1")
	m.policy("shop", "b")
	m.want(t, address, "")

	// A namespace has few addresses, and more take none away.
	var many []fact.KeyAddress
	for i := range perNamespace {
		many = append(many, fact.KeyAddress{URL: fmt.Sprintf("%sz%d", address.URL, i)})
	}
	m.policy("shop", "many", many...)
	for _, one := range many {
		m.want(t, one, "1")
	}
	m.policy("shop", "more", address)
	m.want(t, address, "0 TooMany")
	m.policy("shop", "many", many[1:]...)
	m.want(t, address, "1")
	m.want(t, many[0], "")
	m.Observe(fact.Fact{Object: mesh.ObjectRef{APIVersion: "v1", Kind: "Namespace", Name: "shop"}})
	m.want(t, address, "")
}

// TestSettle waits for the first keys, and no longer than it may for a server that does not answer.
func TestSettle(t *testing.T) {
	t.Parallel()
	server := newIssuer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
		time.Sleep(50 * time.Millisecond)
		_, _ = io.WriteString(w, keys)
	})
	m := start(t, &connector{lookup: (&resolver{answers: []string{"127.0.0.1"}}).lookup, public: isPublic, time: time.Second}, time.Minute)
	m.Settle(t.Context())
	m.Allow(server.hosts(t, "", "example.com:PORT"))
	address := fact.KeyAddress{URL: "https://example.com:" + server.port + "/"}
	m.policy("shop", "a", address, fact.KeyAddress{URL: address.URL + "slow"})
	m.Settle(t.Context())
	m.mu.Lock()
	defer m.mu.Unlock()
	if content := m.facts[address.Object()]; content == nil || len(content.Sets[""].Keys) != 1 {
		t.Errorf("the keys are %v", content)
	}
}
