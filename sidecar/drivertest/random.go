package drivertest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// RandomView returns a View whose fields have random values. Half of the texts are the given
// one, also those that the controller would refuse, so that fuzz targets of drivers can ask
// the real proxy whether a text of a user can break a configuration. The fields are found by
// reflection, so new ones are filled too. The View keeps to what package mesh promises: for
// example, keys are unique, and at most one field of a StringMatch is set. The same arguments
// give the same View.
//
// The trust domain, the versions of TLS, and the proxy's own names and addresses are valid: no
// user writes them.
func RandomView(text string, seed uint64) *mesh.View {
	return (&filler{rand: rand.New(rand.NewPCG(seed, 1)), text: text}).view()
}

func (f *filler) view() *mesh.View {
	proxy, settings := new(mesh.Proxy), new(mesh.Settings)
	inbound, egress := new(mesh.Inbound), new(mesh.Egress)
	f.fill(proxy, settings, inbound, egress)
	proxy.Name, proxy.Identity = mesh.Name{Namespace: "shop", Name: "web-1"}, mesh.Identity{TrustDomain: trustDomain, Namespace: "shop", ServiceAccount: "web"}
	proxy.UID, proxy.Class = "uid-web-1", "random"
	if proxy.Gateway = f.rand.IntN(4) == 0; proxy.Gateway {
		*inbound, *egress = mesh.Inbound{TLS: mesh.Strict}, mesh.Egress{}
	}
	proxy.Addresses = []netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00:244::5")}[:1+f.rand.IntN(2)]
	settings.TrustDomain, settings.TLS = trustDomain, mesh.TLS{Min: "1.2", Max: "1.3", Ciphers: []string{"ECDHE-RSA-AES128-GCM-SHA256"}, Curves: []string{"X25519"}}

	backends, destinations := map[string]*mesh.Backend{}, map[string]*mesh.Destination{}
	for i := range 4 {
		b := new(mesh.Backend)
		f.fill(b)
		b.Name = f.name(i)
		backends[b.Name] = mesh.Seal(b)
	}
	var unknown []netip.Prefix
	for i := range 3 {
		d := new(mesh.Destination)
		f.fill(d)
		d.Name, d.Addresses = f.name(i), []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})}
		d.Protocol = []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.GRPC}[i]
		if d.Protocol.IsHTTP() {
			d.Backends, d.Servers = nil, nil
		} else if d.Routes = nil; len(d.Servers) > 0 {
			d.Backends = nil
		}
		f.gateway(d, proxy, uint16(8080+i))
		destinations[d.Name] = mesh.Seal(d)
	}
	if !proxy.Gateway {
		f.fill(&unknown)
	}
	outbound := mesh.NewOutbound("shop/web", mesh.TableOf(destinations), mesh.TableOf(backends)).WithUnknown(unknown)
	return mesh.NewView(mesh.Seal(proxy), mesh.Seal(settings), mesh.Seal(inbound), outbound, mesh.Seal(egress))
}

// gateway makes the Destination a port of the proxy if that is a gateway's.
func (f *filler) gateway(d *mesh.Destination, proxy *mesh.Proxy, port uint16) {
	if d.Listens = proxy.Gateway; d.Listens {
		d.Port, d.Addresses = port, []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[:len(proxy.Addresses)]
	}
	if !d.Listens || !d.Protocol.IsHTTP() {
		d.Hosts = nil
	}
	slices.SortFunc(d.Hosts, mesh.CompareHosts)
	d.Hosts = slices.Compact(d.Hosts)
	if !d.Listens {
		d.Certificates = nil
	}
	slices.SortStableFunc(d.Certificates, func(a, b mesh.ServerCertificate) int { return mesh.CompareHosts(a.Host, b.Host) })
	d.Certificates = slices.CompactFunc(d.Certificates, func(a, b mesh.ServerCertificate) bool { return a.Host == b.Host })
	for i := range d.Routes {
		if d.Routes[i].Host = ""; len(d.Hosts) > 0 {
			d.Routes[i].Host = d.Hosts[f.rand.IntN(len(d.Hosts))]
		}
	}
}

// filler sets fields to random values.
type filler struct {
	rand *rand.Rand
	text string
	// filled has the fields that were set to the text at least once, as type and field.
	filled map[string]bool
	// field is the one that is being filled.
	field string
}

// name returns the key of a Backend or Destination.
func (f *filler) name(i int) string {
	if i == 0 && f.text != "" {
		return f.text
	}
	return fmt.Sprintf("shop/%s-%d:80", f.text, i)
}

func (f *filler) fill(pointers ...any) {
	for _, p := range pointers {
		f.value(reflect.ValueOf(p).Elem())
	}
}

// choices are the values of types that are no text of a user.
var choices = map[reflect.Type][]any{
	reflect.TypeFor[mesh.Protocol]():            {mesh.HTTP, mesh.HTTP1, mesh.HTTP2, mesh.GRPC, mesh.TCP, mesh.TCPServerFirst},
	reflect.TypeFor[mesh.EgressProtocol]():      {mesh.EgressHTTP, mesh.EgressTLS, mesh.EgressTCP},
	reflect.TypeFor[mesh.TLSMode]():             {mesh.Strict, mesh.Permissive},
	reflect.TypeFor[mesh.LoadBalancingPolicy](): {mesh.RoundRobin, mesh.LeastRequest, mesh.Random, mesh.RingHash, mesh.Maglev},
	reflect.TypeFor[mesh.TokenAlgorithm]():      {mesh.TokenES256, mesh.TokenPS256, mesh.TokenEdDSA, mesh.TokenAlgorithm("none"), mesh.TokenAlgorithm("HS256"), mesh.TokenAlgorithm("")},
	reflect.TypeFor[[]byte]():                   {fixedKey(mesh.TokenES256), fixedKey(mesh.TokenPS256), fixedKey(mesh.TokenEdDSA), []byte("no key"), []byte(nil)},
	reflect.TypeFor[time.Duration]():            {time.Duration(0), time.Second, time.Millisecond, time.Nanosecond, -time.Second, time.Duration(1 << 62)},
	reflect.TypeFor[uint16]():                   {uint16(80), uint16(443), uint16(301), uint16(1), uint16(65535), uint16(0)},
	reflect.TypeFor[uint32]():                   {uint32(0), uint32(1), uint32(3), uint32(200), uint32(1 << 31), uint32(1<<32 - 1)},
	reflect.TypeFor[mesh.Digest]():              {mesh.Digest{}, mesh.DigestOf("a"), mesh.DigestOf("b")},
	reflect.TypeFor[netip.Addr](): {
		netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::"), netip.Addr{},
	},
	reflect.TypeFor[netip.Prefix](): {
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("0.0.0.0/0"), netip.Prefix{},
	},
}

// words are texts that fields contain beside the user's.
var words = []string{
	"a", "x-a", "host", "cookie", "GET", "*", "/a", "/a/", "a.*", "5xx", "gateway-error", "reset", "connect-failure", "example.com", "*.example.com", "10.0.0.1", "1.2", "1.3",
	"https", "zipkin", "otlp", "http://example.com", "",
}

func (f *filler) value(v reflect.Value) {
	if values, ok := choices[v.Type()]; ok {
		v.Set(reflect.ValueOf(values[f.rand.IntN(len(values))]))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		f.object(v)
	case reflect.Pointer:
		if f.rand.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.value(v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), f.rand.IntN(4), 3))
		for i := range v.Len() {
			f.value(v.Index(i))
		}
	case reflect.Bool:
		v.SetBool(f.rand.IntN(2) == 0)
	case reflect.String:
		f.string(v)
	default:
		panic("drivertest: RandomView has no values for " + v.Type().String() + "; add them to choices")
	}
}

func (f *filler) string(v reflect.Value) {
	switch f.rand.IntN(6) {
	case 0, 1, 2:
		v.SetString(f.text)
		if f.filled != nil {
			f.filled[f.field] = true
		}
	case 3:
		v.SetString("*." + f.text)
	default:
		v.SetString(words[f.rand.IntN(len(words))])
	}
}

// object fills a struct, and then makes what its documentation promises true.
func (f *filler) object(v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if (field.IsExported() || field.Anonymous) && field.Type != reflect.TypeFor[mesh.Sealed]() {
			f.field = v.Type().Name() + "." + field.Name
			f.value(v.Field(i))
		}
	}
	switch o := v.Addr().Interface().(type) {
	case *mesh.StringMatch:
		all := []mesh.StringMatch{{Exact: o.Exact}, {Prefix: o.Prefix}, {Regex: o.Regex}, {Present: true}}
		*o = all[f.rand.IntN(len(all))]
	case *mesh.PathChange:
		if f.rand.IntN(2) == 0 {
			o.Full = ""
		}
		if o.Full != "" {
			o.Full, o.Prefix = "/"+o.Full, ""
		}
	case *mesh.TokenKey:
		if key := fixedKey(o.Algorithm); key != nil {
			o.Public = key
		}
	case *mesh.EgressHost:
		withoutTokens(o.Matches)
	case *mesh.EgressWithin:
		withoutTokens(o.Matches)
	case *mesh.Route:
		o.Match.Token = nil
		if o.Redirect != nil {
			o.Backends, o.Session = nil, nil
		}
	case *mesh.Redirect:
		o.Status = []uint16{301, 302, 303, 307, 308}[f.rand.IntN(5)]
	case *mesh.WeightedBackend:
		o.Backend = f.name(f.rand.IntN(5))
	case *mesh.Mirror:
		o.Backend, o.Denominator = f.name(f.rand.IntN(4)), max(o.Denominator, 1)
		o.Numerator = min(max(o.Numerator, 1), o.Denominator)
	case *mesh.HashOn:
		all := []mesh.HashOn{{Header: cmp.Or(o.Header, "x-a")}, {Cookie: cmp.Or(o.Cookie, "a"), CookieTTL: o.CookieTTL}, {SourceIP: true}}
		*o = all[f.rand.IntN(len(all))]
	case *mesh.Session:
		if f.rand.IntN(2) == 0 {
			o.Cookie = ""
		}
		if o.Cookie == "" {
			o.Header = cmp.Or(o.Header, "x-session")
		} else {
			o.Header = ""
		}
	case *mesh.Inbound:
		o.Ports = uniquePorts(o.Ports, func(p mesh.InboundPort) uint16 { return p.Port })
	case *mesh.Egress:
		o.Ports = uniquePorts(o.Ports, func(p mesh.EgressRoutes) uint16 { return p.Port })
	case *mesh.EgressRoutes:
		slices.SortFunc(o.Hosts, func(a, b mesh.EgressHost) int { return cmp.Compare(a.Host, b.Host) })
		o.Hosts = slices.CompactFunc(o.Hosts, func(a, b mesh.EgressHost) bool { return a.Host == b.Host })
	}
}

// withoutTokens removes conditions that only access rules have.
func withoutTokens(matches []mesh.HTTPMatch) {
	for i := range matches {
		matches[i].Token = nil
	}
}

func uniquePorts[T any](ports []T, portOf func(T) uint16) []T {
	slices.SortFunc(ports, func(a, b T) int { return cmp.Compare(portOf(a), portOf(b)) })
	return slices.CompactFunc(ports, func(a, b T) bool { return portOf(a) == portOf(b) })
}
