package xds

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// expected is what a request must be decoded to.
func expected(m *discoveryv3.DeltaDiscoveryRequest) request {
	return request{
		nodeID: m.GetNode().GetId(), build: buildOf(m.GetNode()),
		typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), refusal: m.GetErrorDetail(),
		subscribe: m.GetResourceNamesSubscribe(), unsubscribe: m.GetResourceNamesUnsubscribe(), initial: m.GetInitialResourceVersions(),
	}
}

// sameRequest compares requests. An empty map is the same as none.
func sameRequest(a, b request) bool {
	if !proto.Equal(a.refusal, b.refusal) || len(a.initial) != len(b.initial) {
		return false
	}
	a.refusal, b.refusal = nil, nil
	if len(a.initial) == 0 {
		a.initial, b.initial = nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// inParts returns the bytes in parts, as they arrive.
func inParts(b []byte, size int) mem.BufferSlice {
	var parts mem.BufferSlice
	for part := range slices.Chunk(b, size) {
		parts = append(parts, mem.SliceBuffer(part))
	}
	return parts
}

// TestDeltaRequest compares how random requests are decoded with the generated code.
func TestDeltaRequest(t *testing.T) {
	g := rand.New(rand.NewPCG(1, 2))
	word := func() string { return []string{"", "a", "shop/cart:80", "ü", "*", "0123456789abcdef"}[g.IntN(6)] }
	words := func() (all []string) {
		for range g.IntN(4) {
			all = append(all, word())
		}
		return all
	}
	for range 2000 {
		m := &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: word(), ResponseNonce: word(), ResourceNamesSubscribe: words(), ResourceNamesUnsubscribe: words(),
			ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{Name: word()}},
		}
		if g.IntN(2) == 0 {
			m.Node = &corev3.Node{Id: word(), UserAgentName: word()}
		}
		if g.IntN(3) == 0 {
			m.ErrorDetail = &status.Status{Code: g.Int32N(3), Message: word()}
		}
		for _, name := range words() {
			if m.InitialResourceVersions == nil {
				m.InitialResourceVersions = make(map[string]string)
			}
			m.InitialResourceVersions[name] = word()
		}
		encoded, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var got deltaRequest
		if err := got.unmarshal(inParts(encoded, 1+g.IntN(100))); err != nil {
			t.Fatal(err)
		}
		if want := expected(m); !sameRequest(got.request, want) {
			t.Fatalf("%v is decoded to %+v, want %+v", m, got.request, want)
		}
	}
}

// FuzzDeltaRequest decodes arbitrary bytes: whatever the generated code accepts means the same, and
// whatever it refuses is refused, or is wrong only in what is not read.
func FuzzDeltaRequest(f *testing.F) {
	for _, m := range []*discoveryv3.DeltaDiscoveryRequest{
		{},
		{Node: &corev3.Node{Id: "p"}, TypeUrl: clusters, ResourceNamesSubscribe: []string{"a"}, InitialResourceVersions: map[string]string{"a": "1"}},
		{TypeUrl: clusters, ResponseNonce: "1", ErrorDetail: &status.Status{Message: "no"}, ResourceNamesUnsubscribe: []string{"b"}},
	} {
		encoded, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got deltaRequest
		err := got.unmarshal(inParts(b, 7))
		m := new(discoveryv3.DeltaDiscoveryRequest)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if err != nil {
			t.Fatalf("%v is refused: %v", m, err)
		}
		if want := expected(m); !sameRequest(got.request, want) {
			t.Fatalf("%v is decoded to %+v, want %+v", m, got.request, want)
		}
	})
}

// manyVersions is the request of a client that comes back with 1,000 services.
func manyVersions(t testing.TB) []byte {
	m := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "p"}, TypeUrl: endpoints, InitialResourceVersions: make(map[string]string)}
	for i := range 1000 {
		name := fmt.Sprintf("shop-%d/service-%d|8080", i%20, i)
		m.ResourceNamesSubscribe = append(m.ResourceNamesSubscribe, name)
		m.InitialResourceVersions[name] = resourceOf(endpoints, name, "1").version()
	}
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// TestDeltaRequestAllocations bounds what a client that comes back costs: all its names and versions
// are one string.
func TestDeltaRequestAllocations(t *testing.T) {
	parts := inParts(manyVersions(t), 16<<10)
	if got := testing.AllocsPerRun(10, func() {
		if err := new(deltaRequest).unmarshal(parts); err != nil {
			t.Fatal(err)
		}
	}); got > 30 {
		t.Errorf("a request with 1,000 versions costs %.0f allocations, want at most 30", got)
	}
}

func BenchmarkDeltaRequest(b *testing.B) {
	encoded := manyVersions(b)
	parts := inParts(encoded, 16<<10)
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := new(deltaRequest).unmarshal(parts); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(encoded, new(discoveryv3.DeltaDiscoveryRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
