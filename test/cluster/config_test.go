package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// kubeconfig has the fields of a kubeconfig file in which names are written.
type kubeconfig struct {
	Clusters, Users []struct{ Name string }
	Contexts        []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	CurrentContext string `json:"current-context"`
}

// A cluster may have a name that YAML reads as a boolean, a number or null if it is not in
// quotes. kubectl then rejects the whole file.
func TestNamesOfOtherTypes(t *testing.T) {
	for _, name := range []string{"e2e", "y", "n", "on", "true", "123", "1e3", "null", "~"} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{name: name, dir: t.TempDir()}
			if err := c.writeConfig(); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(c.path("config", "*.kubeconfig"))
			if err != nil || len(files) != 4 {
				t.Fatalf("there are the files %q besides the user's, want 4: %v", files, err)
			}
			for _, file := range append(files, c.kubeconfig()) {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				var got kubeconfig
				// As kubectl does: yaml.Unmarshal would turn other types into strings.
				asJSON, err := yaml.YAMLToJSON(text)
				if err == nil {
					err = json.Unmarshal(asJSON, &got)
				}
				if err != nil {
					t.Fatalf("%s cannot be read: %v\n%s", filepath.Base(file), err, text)
				}
				if got.CurrentContext != name || got.Contexts[0].Name != name || got.Contexts[0].Context.Cluster != name || got.Clusters[0].Name != name {
					t.Errorf("%s does not name the cluster %q everywhere:\n%s", filepath.Base(file), name, text)
				}
				if got.Contexts[0].Context.User != got.Users[0].Name {
					t.Errorf("the user of %s is not the one of its context:\n%s", filepath.Base(file), text)
				}
			}
		})
	}
}
