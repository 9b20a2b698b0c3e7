package explain

import (
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// withToken returns the request with its token, if one is verified now.
func withToken(in *mesh.Inbound, r *mesh.Request) *mesh.Request {
	if r == nil || len(in.Issuers) == 0 {
		return r
	}
	with := *r
	with.Token = mesh.VerifyToken(in.Issuers, r, time.Now())
	return &with
}

func describeToken(m *mesh.TokenMatch) string {
	text := "a token"
	if m.Issuer != "" {
		text += " of " + m.Issuer
	}
	if len(m.Audiences) > 0 {
		text += " for " + strings.Join(m.Audiences, "|")
	}
	for _, claim := range m.Claims {
		text += " with " + strings.Join(claim.Path, ".")
		if len(claim.Values) > 0 {
			text += " " + strings.Join(claim.Values, "|")
		}
	}
	return text
}
