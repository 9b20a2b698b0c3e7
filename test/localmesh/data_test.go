package localmesh

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadData(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata: {x: one}\nbinaryData: {b: aGk=}\n---\nkind: Secret\napiVersion: v1\nmetadata: {name: a, namespace: shop}\ndata: {x: aGk=, z: aGk=}\nstringData: {z: plain}\n---\nkind: Secret: [\n",
		"b.json": `{"kind": "List", "apiVersion": "v1", "items": [{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "empty", "namespace": "shop"}}, {"kind": "ConfigMap", "apiVersion": "other/v1", "metadata": {"name": "o"}}]}`,
		"c.txt":  "kind: ConfigMap\napiVersion: v1\nmetadata: {name: c}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readData(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[dataKey]map[string]string{
		{"ConfigMap", "default", "a"}:  {"x": "one", "b": "hi"},
		{"Secret", "shop", "a"}:        {"x": "hi", "z": "plain"},
		{"ConfigMap", "shop", "empty"}: {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
