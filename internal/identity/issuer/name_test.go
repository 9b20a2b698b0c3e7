package issuer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// TestNames checks that the descriptions for logs and errors contain no secrets.
func TestNames(t *testing.T) {
	cert, key, err := issuer.NewRoot("cluster.local", issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := issuer.FromPEM(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	vault, err := issuer.NewVault(issuer.VaultOptions{
		Address: "https://vault.example.com:8200", Role: "mesh",
		Token: func(context.Context) (string, error) { return "secret", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		issuer issuer.Issuer
		want   string
	}{
		{ca, "the CA CN=cluster.local"},
		{vault, "vault vault.example.com:8200, pki/mesh"},
	} {
		if got := fmt.Sprint(tt.issuer); got != tt.want {
			t.Errorf("an issuer is called %q, want %q", got, tt.want)
		}
	}
}
