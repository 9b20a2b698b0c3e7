package grpc

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Translate returns the resources, one JSON file for each type, by name.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	if view.Proxy == nil || view.Settings == nil || view.Inbound == nil || view.Outbound == nil || view.Egress == nil {
		return nil, errors.New("grpc: incomplete View; make it with mesh.NewView")
	}
	var files []driver.File
	for i, table := range newTranslator().config(view) {
		all := map[string]json.RawMessage{}
		for name, r := range table.All() {
			message, err := r.Message()
			if err != nil {
				return nil, fmt.Errorf("grpc: decoding %s %q: %w", r.TypeURL, name, err)
			}
			if all[name], err = protojson.Marshal(message); err != nil {
				return nil, fmt.Errorf("grpc: writing %s %q: %w", r.TypeURL, name, err)
			}
		}
		content, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("grpc: %w", err)
		}
		files = append(files, driver.File{Name: [...]string{"endpoints", "clusters", "routes", "listeners"}[i] + ".json", Content: content})
	}
	return files, nil
}
