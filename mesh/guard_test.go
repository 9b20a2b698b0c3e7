//go:build meshguard

package mesh_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestGuard changes sealed parts, which programs must not do.
func TestGuard(t *testing.T) {
	service := mesh.Seal(&fact.Service{Name: mesh.Name{Namespace: "shop", Name: "cart"}, Ports: []fact.PortSpec{{Port: 80}}})
	table := mesh.TableOf(map[string]*fact.Service{"shop/cart": service})
	service.Digest()

	service.Ports[0].Port = 81
	for what, use := range map[string]func(){
		"digest": func() { service.Digest() },
		"table":  func() { table.With(mesh.Change[*fact.Service]{Name: "shop/cart", Value: service}) },
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if v := fmt.Sprint(recover()); !strings.Contains(v, "*fact.Service was changed after it was sealed") || !strings.Contains(v, "cart") {
					t.Errorf("it panicked with %v", v)
				}
			}()
			use()
		})
	}

	service.Ports[0].Port = 80
	service.Digest()
}
