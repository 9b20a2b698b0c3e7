package envoy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// tree is a message as JSON, under the field names of the proto files.
type tree = map[string]any

// staticForm returns the configuration as one JSON file that an Envoy can read
// without a controller: the bootstrap with all resources in it, and what they fetch
// put in its place. identityDir is where the files of the agent's are.
func staticForm(config *Config, identityDir string) ([]byte, error) {
	var form tree
	if err := yaml.Unmarshal([]byte(os.Expand(bootstrap, exampleVariable)), &form); err != nil {
		return nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	delete(form, "dynamic_resources")
	s := staticWriter{}
	for typeURL, into := range map[string]*map[string]tree{
		listenerType: &s.listeners, clusterType: &s.clusters, routeType: &s.routes, endpointType: &s.endpoints, secretType: &s.secrets,
	} {
		var err error
		if *into, err = trees(*config.table(typeURL)); err != nil {
			return nil, err
		}
	}
	// What the agent keeps is there too: Envoy looks at TLS no sooner than it has the
	// secrets, and secrets that are fetched from files come after validation.
	s.secrets["identity"] = tree{"name": "identity", "tls_certificate": tree{
		"certificate_chain": identityFile("chain.pem"), "private_key": identityFile("key.pem"),
	}}
	s.secrets["bundle"] = tree{"name": "bundle", "validation_context": tree{}}
	// Of one pod's identity nobody but its own roots can say anything.
	for _, secret := range s.secrets {
		if validation, ok := secret["validation_context"].(tree); ok {
			validation["trusted_ca"] = identityFile("bundle.pem")
		}
	}
	if err := s.inline(form); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	resources := form["static_resources"].(tree)
	for _, name := range config.Listeners.Names() {
		if err := s.inline(s.listeners[name]); err != nil {
			return nil, fmt.Errorf("listener %q: %w", name, err)
		}
		resources["listeners"] = append(resources["listeners"].([]any), s.listeners[name])
	}
	for _, name := range config.Clusters.Names() {
		if err := s.inline(s.clusters[name]); err != nil {
			return nil, fmt.Errorf("cluster %q: %w", name, err)
		}
		resources["clusters"] = append(resources["clusters"].([]any), s.clusters[name])
	}
	secrets := []any{}
	for _, name := range slices.Sorted(maps.Keys(s.secrets)) {
		secrets = append(secrets, s.secrets[name])
	}
	resources["secrets"] = secrets
	content, err := json.Marshal(form)
	if err != nil {
		return nil, err
	}
	return []byte(strings.ReplaceAll(string(content), driver.IdentityDir, identityDir)), nil
}

func identityFile(name string) tree { return tree{"filename": path.Join(driver.IdentityDir, name)} }

// exampleVariable gives the bootstrap's variables values, as the agent does.
func exampleVariable(name string) string {
	switch name {
	case "POD_IP":
		return "127.0.0.1"
	case "OUTRIGGER_CONTROLLER":
		return "controller.invalid"
	}
	return "example"
}

func trees(resources mesh.Table[*Resource]) (map[string]tree, error) {
	out := make(map[string]tree, resources.Len())
	for name, r := range resources.All() {
		message, err := r.Message()
		if err != nil {
			return nil, fmt.Errorf("decoding %s %q: %w", r.TypeURL, name, err)
		}
		content, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("writing %s %q: %w", r.TypeURL, name, err)
		}
		var t tree
		if err := json.Unmarshal(content, &t); err != nil {
			return nil, fmt.Errorf("reading %s %q: %w", r.TypeURL, name, err)
		}
		out[name] = t
	}
	return out, nil
}

// staticWriter holds the resources by their names.
type staticWriter struct {
	listeners, clusters, routes, endpoints, secrets map[string]tree
}

// inline puts what the tree says to fetch in its place. It is an error if that is
// not there: the proxy would wait for it for ever.
func (s *staticWriter) inline(node any) error {
	switch node := node.(type) {
	case []any:
		for _, item := range node {
			if err := s.inline(item); err != nil {
				return err
			}
		}
	case tree:
		if err := s.inlineFields(node); err != nil {
			return err
		}
		for _, field := range node {
			if err := s.inline(field); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *staticWriter) inlineFields(node tree) error {
	if rds, ok := node["rds"].(tree); ok {
		route, ok := s.routes[fmt.Sprint(rds["route_config_name"])]
		if !ok {
			return fmt.Errorf("there is no route configuration %q", rds["route_config_name"])
		}
		delete(node, "rds")
		node["route_config"] = route
	}
	if eds, ok := node["eds_cluster_config"].(tree); ok {
		endpoints, ok := s.endpoints[fmt.Sprint(eds["service_name"])]
		if !ok {
			return fmt.Errorf("there are no endpoints %q", eds["service_name"])
		}
		delete(node, "eds_cluster_config")
		node["type"], node["load_assignment"] = "STATIC", endpoints
	}
	// A secret without a source is one of the static ones.
	if node["sds_config"] != nil {
		if s.secrets[fmt.Sprint(node["name"])] == nil {
			return fmt.Errorf("there is no secret %q", node["name"])
		}
		delete(node, "sds_config")
	}
	return nil
}
