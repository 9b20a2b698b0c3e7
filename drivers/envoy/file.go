package envoy

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Translator = Driver{}

// Translate returns the resources that a proxy gets, a file for each type: a YAML
// list, sorted by name, of what Envoy's own admin page shows under the same field
// names. bootstrap.yaml is the file that Envoy starts with, before the agent puts in
// the values of its variables.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	if view.Proxy == nil || view.Settings == nil || view.Inbound == nil || view.Outbound == nil || view.Egress == nil {
		return nil, errors.New("envoy: the View lacks a part; make it with mesh.NewView")
	}
	config := NewTranslator().Config(view)
	files := []driver.File{{Name: "bootstrap.yaml", Content: []byte(bootstrap)}}
	for _, f := range []struct {
		name      string
		resources mesh.Table[*Resource]
	}{
		{"listeners.yaml", config.Listeners},
		{"clusters.yaml", config.Clusters},
		{"routes.yaml", config.Routes},
		{"endpoints.yaml", config.Endpoints},
		{"secrets.yaml", config.Secrets},
	} {
		content, err := readable(f.resources)
		if err != nil {
			return nil, fmt.Errorf("envoy: %w", err)
		}
		files = append(files, driver.File{Name: f.name, Content: content})
	}
	return files, nil
}

// readable returns the resources as YAML. It goes by way of JSON, since what
// protojson writes differs from one build of a program to the next in its spaces.
func readable(resources mesh.Table[*Resource]) ([]byte, error) {
	list := make([]json.RawMessage, 0, resources.Len())
	for _, name := range resources.Names() {
		r, _ := resources.Get(name)
		message, err := r.Message()
		if err != nil {
			return nil, fmt.Errorf("decoding %s %q: %w", r.TypeURL, name, err)
		}
		content, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("writing %s %q: %w", r.TypeURL, name, err)
		}
		list = append(list, content)
	}
	content, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(content)
}
