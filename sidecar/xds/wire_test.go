package xds

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestDeltaResponse sends a resource to one client after the other: the first gets its parts, and
// later ones the same in one piece.
func TestDeltaResponse(t *testing.T) {
	r := resourceOf(clusters, "a", "1")
	var first *discoveryv3.DeltaDiscoveryResponse
	for n, parts := range []int{4, 2, 2} {
		response := deltaResponse(clusters, "7", []item{{"a", r}})
		encoded := response.parts.Materialize()
		if len(response.parts) != parts || response.size != len(encoded) {
			t.Errorf("response %d has %d parts of %d bytes, want %d of %d", n, len(response.parts), response.size, parts, len(encoded))
		}
		var got discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(encoded, &got); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = &got
			if c := got.Resources[0]; c.Name != "a" || c.Version != r.version() || contentOf(c.Resource.Value) != "1" || c.Resource.TypeUrl != clusters {
				t.Errorf("response 0 is %v", &got)
			}
		}
		if diff := cmp.Diff(first, &got, protocmp.Transform()); diff != "" {
			t.Errorf("response %d (-first +this):\n%s", n, diff)
		}
	}
}
