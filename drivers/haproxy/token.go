package haproxy

import (
	"encoding/json"
	"fmt"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// tokenFiles returns the keys of the issuers, and what token.lua reads.
func tokenFiles(in *mesh.Inbound) (files []driver.File) {
	matches := in.TokenMatches()
	if len(matches) == 0 {
		return nil
	}
	for i, issuer := range in.Issuers {
		for k, key := range issuer.Keys {
			files = append(files, driver.File{Name: fmt.Sprintf("keys/%d-%d.pem", i, k), Content: key.PEM()})
		}
	}
	content, _ := json.Marshal(map[string]any{"issuers": in.Issuers, "matches": matches})
	return append(files, driver.File{Name: "tokens.json", Content: content})
}
