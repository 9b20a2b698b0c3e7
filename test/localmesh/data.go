package localmesh

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// dataKey identifies a ConfigMap or a Secret.
type dataKey struct{ kind, namespace, name string }

// holder is a ConfigMap, or a Secret whose data is encoded, or a list.
type holder struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Data              map[string]string `json:"data"`
	BinaryData        map[string][]byte `json:"binaryData"`
	Items             []json.RawMessage `json:"items"`
}

// readData returns the content of the ConfigMaps and Secrets in a folder of manifests. Documents
// that cannot be read are reported elsewhere.
func readData(folder string) (map[dataKey]map[string]string, error) {
	all := make(map[dataKey]map[string]string)
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !manifest.IsFile(name) {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, document := range manifest.Split(text) {
			addData(all, document.Text)
		}
		return nil
	})
	return all, err
}

// addData adds the content of an object, or of those in a list.
func addData(all map[dataKey]map[string]string, text []byte) {
	if !bytes.Contains(text, []byte("ConfigMap")) && !bytes.Contains(text, []byte("Secret")) {
		return
	}
	var found holder
	if yaml.Unmarshal(text, &found) != nil {
		return
	}
	for _, item := range found.Items {
		addData(all, item)
	}
	data := make(map[string]string)
	switch {
	case found.APIVersion != "v1":
		return
	case found.Kind == "ConfigMap":
		for key, value := range found.Data {
			data[key] = value
		}
		for key, value := range found.BinaryData {
			data[key] = string(value)
		}
	case found.Kind == "Secret":
		var secret corev1.Secret
		if yaml.Unmarshal(text, &secret) != nil {
			return
		}
		for key, value := range secret.Data {
			data[key] = string(value)
		}
		for key, value := range secret.StringData {
			data[key] = value
		}
	default:
		return
	}
	all[dataKey{found.Kind, cmp.Or(found.Namespace, corev1.NamespaceDefault), found.Name}] = data
}
