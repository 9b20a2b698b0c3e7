package localmesh

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// readConfigMaps returns the data of the ConfigMaps in a folder of manifests, by
// namespace/name. Documents that cannot be read are reported elsewhere.
func readConfigMaps(folder string) (map[string]map[string]string, error) {
	all := make(map[string]map[string]string)
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, document := range manifest.Split(text) {
			if !bytes.Contains(document.Text, []byte("ConfigMap")) {
				continue
			}
			var list struct {
				corev1.ConfigMap
				Items []corev1.ConfigMap `json:"items"`
			}
			if yaml.Unmarshal(document.Text, &list) != nil {
				continue
			}
			for _, found := range append(list.Items, list.ConfigMap) {
				if found.Kind != "ConfigMap" || found.APIVersion != "v1" {
					continue
				}
				if found.Namespace == "" {
					found.Namespace = corev1.NamespaceDefault
				}
				if found.Data == nil {
					found.Data = make(map[string]string)
				}
				for key, value := range found.BinaryData {
					found.Data[key] = string(value)
				}
				all[found.Namespace+"/"+found.Name] = found.Data
			}
		}
		return nil
	})
	return all, err
}
