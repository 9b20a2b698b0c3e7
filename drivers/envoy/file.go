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

// Translate returns a proxy's resources, one file for each type: a YAML list sorted by
// name, with the field names of Envoy's admin page. bootstrap.yaml is the file that
// Envoy starts with, before the agent substitutes its variables.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	if view.Proxy == nil || view.Settings == nil || view.Inbound == nil || view.Outbound == nil || view.Egress == nil {
		return nil, errors.New("envoy: incomplete View; make it with mesh.NewView")
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
		{"extensions.yaml", config.Extensions},
	} {
		content, err := readable(f.resources)
		if err != nil {
			return nil, fmt.Errorf("envoy: %w", err)
		}
		files = append(files, driver.File{Name: f.name, Content: content})
	}
	return files, nil
}

// readable returns the resources as YAML. It converts them through JSON, since the
// white space of protojson's output differs between builds.
func readable(resources mesh.Table[*Resource]) ([]byte, error) {
	list := make([]json.RawMessage, 0, resources.Len())
	for _, name := range resources.Names() {
		r, _ := resources.Get(name)
		content, err := toJSON(r)
		if err != nil {
			return nil, err
		}
		list = append(list, content)
	}
	content, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(content)
}

// toJSON returns the resource as JSON, with the field names of the proto files.
func toJSON(r *Resource) ([]byte, error) {
	message, err := r.Message()
	if err != nil {
		return nil, fmt.Errorf("decoding %s %q: %w", r.TypeURL, r.Name, err)
	}
	content, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("writing %s %q: %w", r.TypeURL, r.Name, err)
	}
	return content, nil
}
