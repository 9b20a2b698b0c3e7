package envoy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// tree is a message as JSON with the field names of the proto files.
type tree = map[string]any

// staticForm returns the configuration as one JSON file that Envoy can read without a
// controller: the bootstrap with all resources inlined.
func staticForm(config *Config) ([]byte, error) {
	var form tree
	if err := yaml.Unmarshal([]byte(os.Expand(bootstrap, exampleVariable)), &form); err != nil {
		return nil, fmt.Errorf("reading the bootstrap: %w", err)
	}
	delete(form, "dynamic_resources")
	s := staticWriter{}
	for _, typeURL := range types {
		all, err := trees(*config.table(typeURL))
		if err != nil {
			return nil, err
		}
		s[typeURL] = all
	}
	agentSecrets := s[secretType]
	// The agent's secrets are inlined too: Envoy checks TLS only once it has the
	// secrets, and it loads secrets from files after validation.
	agentSecrets["identity"] = tree{"name": "identity", "tls_certificate": tree{
		"certificate_chain": identityFile("chain.pem"), "private_key": identityFile("key.pem"),
	}}
	agentSecrets["bundle"] = tree{"name": "bundle", "validation_context": tree{}}
	// Only the example identity's own roots can verify it.
	for _, secret := range agentSecrets {
		if validation, ok := secret["validation_context"].(tree); ok {
			validation["trusted_ca"] = identityFile("bundle.pem")
		}
	}
	if err := s.inline(form); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	resources := form["static_resources"].(tree)
	for _, list := range []struct{ typeURL, kind, field string }{
		{listenerType, "listener", "listeners"}, {clusterType, "cluster", "clusters"}, {secretType, "secret", "secrets"},
	} {
		all, _ := resources[list.field].([]any)
		for _, name := range slices.Sorted(maps.Keys(s[list.typeURL])) {
			if err := s.inline(s[list.typeURL][name]); err != nil {
				return nil, fmt.Errorf("%s %q: %w", list.kind, name, err)
			}
			all = append(all, s[list.typeURL][name])
		}
		resources[list.field] = all
	}
	return json.Marshal(form)
}

func identityFile(name string) tree { return tree{"filename": path.Join(driver.IdentityDir, name)} }

// exampleVariable returns example values of the bootstrap's variables, which the agent
// substitutes in a pod.
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
		content, err := toJSON(r)
		if err != nil {
			return nil, err
		}
		var t tree
		if err := json.Unmarshal(content, &t); err != nil {
			return nil, fmt.Errorf("reading %s %q: %w", r.TypeURL, name, err)
		}
		out[name] = t
	}
	return out, nil
}

// staticWriter holds the resources by type URL and name.
type staticWriter map[string]map[string]tree

// inline replaces references to resources by the resources. A missing resource is an
// error: the proxy would wait for it forever.
func (s staticWriter) inline(node any) error {
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

func (s staticWriter) inlineFields(node tree) error {
	if rds, ok := node["rds"].(tree); ok {
		route, ok := s[routeType][fmt.Sprint(rds["route_config_name"])]
		if !ok {
			return fmt.Errorf("there is no route configuration %q", rds["route_config_name"])
		}
		delete(node, "rds")
		node["route_config"] = route
	}
	if eds, ok := node["eds_cluster_config"].(tree); ok {
		endpoints, ok := s[endpointType][fmt.Sprint(eds["service_name"])]
		if !ok {
			return fmt.Errorf("there are no endpoints %q", eds["service_name"])
		}
		delete(node, "eds_cluster_config")
		node["type"], node["load_assignment"] = "STATIC", endpoints
	}
	if node["config_discovery"] != nil {
		extension, ok := s[extensionType][fmt.Sprint(node["name"])]
		if !ok {
			return fmt.Errorf("there is no filter %q", node["name"])
		}
		delete(node, "config_discovery")
		node["typed_config"] = extension["typed_config"]
	}
	// A secret reference without a source means a static secret.
	if node["sds_config"] != nil {
		name := fmt.Sprint(node["name"])
		if s[secretType][name] == nil && strings.HasPrefix(name, certificatePrefix) {
			// A View has no private keys, so the proxy's own certificate takes their place.
			s[secretType][name] = tree{"name": name, "tls_certificate": s[secretType]["identity"]["tls_certificate"]}
		}
		if s[secretType][name] == nil {
			return fmt.Errorf("there is no secret %q", node["name"])
		}
		delete(node, "sds_config")
	}
	return nil
}
