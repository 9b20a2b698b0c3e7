package haproxy

import (
	"crypto/tls"
	"os/exec"
	"regexp"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// runningOpenSSL matches the library that HAProxy runs with.
var runningOpenSSL = regexp.MustCompile(`Running on (?:OpenSSL|SSL library) version : (OpenSSL [0-9.]+)`)

// exchangeOf returns the key exchange that the HAProxy of the tests has by default, as its
// version tells.
func exchangeOf(t *testing.T) string {
	t.Helper()
	path, err := Driver{}.FindProxy()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	out, err := exec.Command(path, "-vv").Output()
	own, library := versionIn.Find(out), runningOpenSSL.FindSubmatch(out)
	if err != nil || own == nil || library == nil {
		t.Fatalf("%s -vv says %q, %v", path, out, err)
	}
	return releases.KeyExchange(string(own) + " " + string(library[1]))
}

// TestKeyExchange checks which key exchanges HAProxy uses as a server and as a client: the
// strongest that it has by default, and only those of the settings.
func TestKeyExchange(t *testing.T) {
	best := exchangeOf(t)
	names := map[string]tls.CurveID{driver.KeyExchangeHybrid: tls.X25519MLKEM768, driver.KeyExchangeClassic: tls.X25519, "P-384": tls.CurveP384}
	for _, tt := range []struct {
		name     string
		settings []string
		want     string
		others   []tls.CurveID // neither accepted nor offered
	}{
		{"default", nil, best, nil},
		{"settings with a hybrid one", []string{driver.KeyExchangeHybrid, "P-384"}, map[string]string{driver.KeyExchangeHybrid: driver.KeyExchangeHybrid, driver.KeyExchangeClassic: "P-384"}[best], []tls.CurveID{tls.X25519}},
		{"settings", []string{"P-384"}, "P-384", []tls.CurveID{tls.X25519, tls.X25519MLKEM768}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newApp(t)
			s := newFixture(store)
			s.settings.TLS.Curves = tt.settings
			s.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}}
			server, ca := runInbound(t, s)
			offer := func(exchanges ...tls.CurveID) (tls.CurveID, error) {
				config := ca.as(buyer, store)
				config.CurvePreferences = exchanges
				conn, err := dial(server.inbound, local(a.http))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				client := tls.Client(conn, config)
				err = client.Handshake()
				return client.ConnectionState().CurveID, err
			}
			if got, err := offer(tls.CurveP384, tls.X25519, tls.X25519MLKEM768); err != nil || got != names[tt.want] {
				t.Errorf("the server chooses %v, %v, want %s", got, err, tt.want)
			}
			p := newPeer(t, ca, store)
			f := newFixture(buyer)
			f.settings.TLS.Curves = tt.settings
			f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
			r := runOutbound(t, ca, f)
			if response, _, err := ask(client(r.outbound, storeAddress, nil, false), "http://books.example.com/"); err != nil || response.StatusCode != 200 {
				t.Fatalf("a request gets %v, %v", response, err)
			}
			got := p.connections[0].CurveID
			if tt.settings == nil && got != names[tt.want] {
				t.Errorf("the client uses %v, want %s", got, tt.want)
			}
			for _, other := range tt.others {
				if _, err := offer(other); err == nil {
					t.Errorf("the server accepts %v", other)
				}
				if got == other && isAtLeast(t, 3, 0) {
					t.Errorf("the client uses %v", other)
				}
			}
		})
	}
}

// TestKeyExchangeThatIsMissing checks that HAProxy uses no weaker key exchange than asked for.
func TestKeyExchangeThatIsMissing(t *testing.T) {
	f := newFixture(store)
	f.settings.TLS.Curves = []string{driver.KeyExchangeHybrid}
	err := Driver{}.Check(t.Context(), f.view())
	if best := exchangeOf(t); (err == nil) != (best == driver.KeyExchangeHybrid) {
		t.Errorf("HAProxy, which has %s, says about a list of the hybrid one only: %v", best, err)
	}
}
