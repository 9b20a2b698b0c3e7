package repo

import (
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestRefusedBefore has an agent come back that has refused the version of a controller that
// is gone. It says so only by not wanting it.
func TestRefusedBefore(t *testing.T) {
	c := newCore(t)
	proxy := proxyOf("1")
	port := mesh.ServicePort{Name: mesh.Name{Namespace: "elsewhere", Name: "bad"}, Port: 80}
	bad := mesh.Seal(&mesh.Destination{Name: port.String(), Service: port, Protocol: mesh.HTTP, Port: 80, Routes: []mesh.Route{{Origin: drivertest.Origin("HTTPRoute", "bad")}}})
	view := mesh.NewView(mesh.Seal(proxy), testSettings, testInbound,
		mesh.NewOutbound("shop/cart", mesh.TableOf(map[string]*mesh.Destination{bad.Name: bad}), mesh.Table[*mesh.Backend]{}), testEgress)
	c.SetView("1", view)
	whole, narrowed := setOf(t, testMain, "bad"), setOf(t, testMain, "good")
	h := c.serve(t, func(s *Server) {
		s.patience = 50 * time.Millisecond
		s.options.Translate = func(v *mesh.View) mirror.Set {
			for _, d := range v.Outbound.Destinations.All() {
				if d.Routes[0].Name() == "bad" {
					return whole
				}
			}
			return narrowed
		}
	})
	client := h.client(t, "1")
	client.Wait = 100 * time.Millisecond
	refused := mirror.Version(whole)
	// The repository answers with what has no bad part, which the proxy runs already.
	_, _ = client.Poll(t.Context(), mirror.Version(narrowed), refused)
	eventually(t, "the part that is left out", func() bool {
		// It goes on not wanting the version, which the search offers once more.
		_, _ = client.Poll(t.Context(), mirror.Version(narrowed), refused)
		for _, r := range h.refusals() {
			if r.LeftOut {
				return isReportOf(r, port)
			}
		}
		return false
	})
}

func isReportOf(r driver.Rejection, port mesh.ServicePort) bool {
	return len(r.Resources) == 1 && r.Resources[0] == "destination "+port.String()
}

// TestLeftOutByTheDriver has a driver leave out a part by itself, which is reported when a proxy has
// accepted the files.
func TestLeftOutByTheDriver(t *testing.T) {
	c := newCore(t)
	proxy := proxyOf("1")
	port := mesh.ServicePort{Name: mesh.Name{Namespace: "elsewhere", Name: "bad"}, Port: 80}
	outbound := func(name string) *mesh.View {
		d := mesh.Seal(&mesh.Destination{Name: port.String(), Service: port, Protocol: mesh.HTTP, Port: 80, Routes: []mesh.Route{{Origin: drivertest.Origin("HTTPRoute", name)}}})
		return mesh.NewView(mesh.Seal(proxy), testSettings, testInbound,
			mesh.NewOutbound("shop/cart", mesh.TableOf(map[string]*mesh.Destination{d.Name: d}), mesh.Table[*mesh.Backend]{}), testEgress)
	}
	c.SetView("1", outbound("large"))
	h := c.serve(t, func(s *Server) {
		s.options.Translate = func(v *mesh.View) mirror.Set {
			d, _ := v.Outbound.Destinations.Get(port.String())
			return setOf(t, testMain, d.Routes[0].Name())
		}
		s.options.LeftOut = func(v *mesh.View) []delivery.Conviction {
			d, _ := v.Outbound.Destinations.Get(port.String())
			if d.Routes[0].Name() != "large" {
				return nil
			}
			return []delivery.Conviction{{Part: mesh.Part{Kind: mesh.PartDestination, Name: d.Name}, Message: "too large"}}
		}
	})
	client := h.client(t, "1")
	client.Wait = 100 * time.Millisecond
	large := mirror.Version(setOf(t, testMain, "large"))
	if _, err := client.Poll(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the part that the driver has left out", func() bool {
		_, _ = client.Poll(t.Context(), large)
		for _, r := range h.refusals() {
			if r.LeftOut {
				object := drivertest.Origin("HTTPRoute", "large").Object
				return isReportOf(r, port) && r.Message == "too large" && slices.Equal(r.Objects, []mesh.ObjectRef{object})
			}
		}
		return false
	})
}
