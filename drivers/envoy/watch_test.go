package envoy

import (
	"encoding/json"
	"os"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// TestSecretsAreAskedForOnce checks that the bootstrap and the controller's
// configuration use equal sources for secrets. Envoy would treat a different source as
// another subscription with its own copy.
func TestSecretsAreAskedForOnce(t *testing.T) {
	var document any
	if err := yaml.Unmarshal([]byte(os.Expand(bootstrap, func(string) string { return "1" })), &document); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	var walk func(value any)
	walk = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, v := range value {
				walk(v)
			}
		case map[string]any:
			for _, v := range value {
				walk(v)
			}
			name, ok := value["name"].(string)
			source, isSecret := value["sds_config"]
			if !ok || !isSecret {
				return
			}
			found[name] = true
			text, err := json.Marshal(source)
			if err != nil {
				t.Fatal(err)
			}
			var got corev3.ConfigSource
			if err := protojson.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if want := agentSecret(name).SdsConfig; !proto.Equal(&got, want) {
				t.Errorf("secret %s comes from %v in the bootstrap, and from %v in what the controller sends", name, &got, want)
			}
		}
	}
	walk(document)
	if !found["identity"] || !found["bundle"] {
		t.Errorf("the bootstrap has the secrets %v", found)
	}
}
