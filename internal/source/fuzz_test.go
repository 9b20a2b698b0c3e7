package source_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// FuzzNewConfig reads MeshConfigs that no API server has seen: there is always a
// Config with usable values, and each Problem fits into the status.
func FuzzNewConfig(f *testing.F) {
	files, err := filepath.Glob("../../apis/config/v1alpha2/testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var obj v1alpha2.MeshConfig
		if yaml.Unmarshal(content, &obj) != nil {
			return
		}
		config, problems := source.NewConfig(&obj, options(nil))
		if config.GetSidecarClass() == "" || config.GetSidecarLogLevel() == "" || config.GetTrustDomain() == "" ||
			config.GetMaxDataPlaneConnections() < 0 || config.GetConfigResyncInterval() < 0 || config.GetProxyServerPort("pipy") > 65535 {
			t.Errorf("values %+v", read(config))
		}
		conditions := source.Conditions(nil, problems, 1, metav1.Now())
		for _, c := range conditions {
			if len(c.Message) > 32768 || len(c.Reason) > 1024 || c.Reason == "" {
				t.Errorf("condition %+v", c)
			}
		}
		for _, p := range problems {
			if p.Field == "" || p.Message == "" || strings.Contains(p.Message, "\n") {
				t.Errorf("Problem %+v", p)
			}
		}
	})
}
