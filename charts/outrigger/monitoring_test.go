package chart_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
)

// TestDashboards checks that the ConfigMaps contain the dashboards unchanged.
func TestDashboards(t *testing.T) {
	all := documents(t, "{monitoring: {dashboards: {enabled: true, annotations: {grafana_folder: Outrigger}}}}")
	for _, name := range []string{"mesh", "workload", "control-plane"} {
		object := find[*corev1.ConfigMap](all, "ConfigMap/outrigger-dashboard-"+name)
		if object == nil {
			t.Errorf("there is no ConfigMap for the dashboard %s", name)
			continue
		}
		if object.Labels["grafana_dashboard"] != "1" || object.Annotations["grafana_folder"] != "Outrigger" || object.Namespace != namespace {
			t.Errorf("%s in %s has the labels %v and the annotations %v", object.Name, object.Namespace, object.Labels, object.Annotations)
		}
		file, err := chart.FS.ReadFile("monitoring/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		text := object.Data["outrigger-"+name+".json"]
		if diff := cmp.Diff(strings.TrimSpace(string(file)), text); diff != "" {
			t.Errorf("%s (-file +ConfigMap):\n%s", name, diff)
		}
		if !json.Valid([]byte(text)) {
			t.Errorf("%s is not JSON", name)
		}
	}
	if object := find[*corev1.ConfigMap](documents(t, ""), "ConfigMap/outrigger-dashboard-mesh"); object != nil {
		t.Error("the defaults have dashboards")
	}
}

// TestAlerts compares the alerts of a PrometheusRule with the file, and leaves some out.
func TestAlerts(t *testing.T) {
	file, err := chart.FS.ReadFile("monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := alerts(t, file)
	for _, test := range []struct {
		values string
		gone   func(group, alert string) bool
	}{
		{"{monitoring: {prometheusRule: {enabled: true}}}", func(string, string) bool { return false }},
		{"{monitoring: {prometheusRule: {enabled: true, disabled: [OutriggerProblems, OutriggerHighLatency]}}}", func(_, alert string) bool {
			return alert == "OutriggerProblems" || alert == "OutriggerHighLatency"
		}},
		{"{injector: {enabled: false}, monitoring: {prometheusRule: {enabled: true}}}", func(group, _ string) bool { return group == "outrigger-injector" }},
	} {
		rule := find[*unstructured.Unstructured](documents(t, test.values), "PrometheusRule/outrigger")
		if rule == nil {
			t.Fatalf("%s: there is no PrometheusRule", test.values)
		}
		spec, err := yaml.Marshal(rule.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		want := slices.DeleteFunc(slices.Clone(all), func(r alertRow) bool { return test.gone(r.group, r.alert) })
		if len(want) == len(all) && strings.Contains(test.values, "disabled") {
			t.Errorf("%s: no alert has this name", test.values)
		}
		if diff := cmp.Diff(want, alerts(t, spec), cmp.AllowUnexported(alertRow{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.values, diff)
		}
	}
}

// alertRow is an alert with everything about it as text.
type alertRow struct{ group, alert, text string }

func alerts(t *testing.T, text []byte) (all []alertRow) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []map[string]any
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			text, err := yaml.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, alertRow{group.Name, r["alert"].(string), string(text)})
		}
	}
	return all
}
