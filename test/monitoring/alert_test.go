package monitoring_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/monitoring"
)

// healthy are series of a mesh without a fault, by minute, in the notation of promtool. None of
// the alerts may fire for them.
var healthy = []string{
	`up{job="outrigger-controller"} 1x120`,
	`up{job="outrigger-injector"} 1x120`,
	`up{job="osm-system/outrigger-sidecars",namespace="shop",pod="cart-0",instance="10.1.0.2:15010"} 1x120`,
	`up{job="osm-system/outrigger-sidecars",namespace="shop",pod="cart-0",instance="10.1.0.2:15901"} 1x120`,
	`leader_election_master_status{name="outrigger-controller"} 1x120`,
	`outrigger_proxies_connected{class="envoy"} 10x120`,
	`outrigger_proxies_behind{class="envoy"} 0x120`,
	`outrigger_proxies_rejecting{class="envoy"} 0x120`,
	`outrigger_injector_config_last_reload_successful 1x120`,
	// These times are in seconds after the beginning. 86400 is one day.
	`outrigger_injector_certificate_expiry_timestamp_seconds 86400x120`,
	`outrigger_identity_controller_certificate_expiry_timestamp_seconds 86400x120`,
	`outrigger_identity_root_expiry_timestamp_seconds{root="ab"} 315360000x120`,
	`outrigger_agent_certificate_expiry_timestamp_seconds{namespace="shop",pod="cart-0"} 86400x120`,
	`outrigger_agent_ready{namespace="shop",pod="cart-0"} 1x120`,
	`outrigger_agent_proxy_restarts_total{namespace="shop",pod="cart-0"} 0x120`,
	`outrigger_agent_mirror_failures_total{namespace="shop",pod="cart-0"} 0x120`,
	`envoy_control_plane_connected_state{namespace="shop",pod="cart-0"} 1x120`,
	`outrigger_injector_ca_bundle_patches_total{result="error"} 0x120`,
	`outrigger_identity_refusals_total{reason="internal"} 0x120`,
	`outrigger_identity_root_refreshes_total{result="error"} 0x120`,
	`outrigger_requests_total{reporter="source",destination_namespace="shop",destination_service="cart",response_code="200",grpc_status=""} 0+600x120`,
	`outrigger_request_duration_seconds_bucket{reporter="source",destination_namespace="shop",destination_service="cart",le="0.1"} 0+600x120`,
	`outrigger_request_duration_seconds_bucket{reporter="source",destination_namespace="shop",destination_service="cart",le="+Inf"} 0+600x120`,
}

// faults are series that replace the healthy ones of the same names, by the only alerts that
// must fire then.
var faults = []struct{ alerts, series string }{
	{"OutriggerControllerDown", `up{job="outrigger-controller"} 0x120`},
	{"OutriggerLeaderMissing", `leader_election_master_status{name="outrigger-controller"} 0x120`},
	{"OutriggerConfigurationSlow", `outrigger_proxy_config_seconds_bucket{le="5"} 0x120; outrigger_proxy_config_seconds_bucket{le="10"} 0+10x120; outrigger_proxy_config_seconds_bucket{le="+Inf"} 0+10x120`},
	{"OutriggerProblems", `outrigger_problems{kind="Retry",namespace="shop",name="a",reason="Invalid"} 1x120`},
	{"OutriggerMTLSDisabled", `outrigger_mtls_disabled{class="pipy"} 1x120`},
	{"OutriggerPodsWithoutSidecar", `outrigger_uninjected_pods{namespace="shop"} 2x120`},
	{"OutriggerInjectorDown", `up{job="outrigger-injector"} 0x120`},
	{"OutriggerInjectorDown", `up{job="outrigger-injector"} _x120`},
	{"OutriggerInjectorDown", `up{job="outrigger-injector-canary"} 0x120; up{job="outrigger-injector"} 1x120`},
	{"OutriggerInjectorSlow", `outrigger_injector_request_duration_seconds_bucket{le="1"} 0x120; outrigger_injector_request_duration_seconds_bucket{le="5"} 0+10x120; outrigger_injector_request_duration_seconds_bucket{le="+Inf"} 0+10x120`},
	{"OutriggerInjectorDenies", `outrigger_injector_decisions_total{outcome="deny",reason="annotation_invalid"} 0+1x120`},
	{"OutriggerInjectorBadRequests", `outrigger_injector_bad_requests_total{code="400"} 0+1x120`},
	{"OutriggerInjectionConfigInvalid", `outrigger_injector_config_last_reload_successful 0x120`},
	{"OutriggerCABundleNotUpdated", `outrigger_injector_ca_bundle_patches_total{result="missing"} 0+1x120`},
	{"OutriggerInjectorCertificateExpiring", `outrigger_injector_certificate_expiry_timestamp_seconds 7800x120`},
	{"OutriggerInjectorCertificateExpiring", `outrigger_injector_certificate_expiry_timestamp_seconds 0x120`},
	{"OutriggerRootExpiring", `outrigger_identity_root_expiry_timestamp_seconds{root="ab"} 2000000x120`},
	{"OutriggerRootExpiring OutriggerRootExpiresSoon", `outrigger_identity_root_expiry_timestamp_seconds{root="ab"} 500000x120`},
	{"OutriggerControllerCertificateExpiring", `outrigger_identity_controller_certificate_expiry_timestamp_seconds 7800x120`},
	{"OutriggerWorkloadCertificateExpiring OutriggerCertificateFailures", `outrigger_agent_certificate_expiry_timestamp_seconds{namespace="shop",pod="cart-0"} 9000x120; outrigger_agent_certificate_failures_total{namespace="shop",pod="cart-0",reason="Unavailable"} 0+1x120`},
	{"OutriggerCertificateFailures", `outrigger_agent_certificate_failures_total{namespace="shop",pod="cart-0",reason="Unavailable"} 0+1x120`},
	{"OutriggerSigningErrors", `outrigger_identity_refusals_total{reason="internal"} 0+1x120`},
	{"OutriggerRootRefreshFailing", `outrigger_identity_root_refreshes_total{result="error"} 0+1x120`},
	{"OutriggerProxiesRefused", `outrigger_proxies_refused_total{class="envoy"} 0+1x120`},
	{"OutriggerProxiesBehind", `outrigger_proxies_behind{class="envoy"} 1x120`},
	{"OutriggerProxiesRejecting", `outrigger_proxies_rejecting{class="envoy"} 1x120`},
	{"OutriggerProxiesFailing", `outrigger_proxies_failing{namespace="shop"} 1x120`},
	{"OutriggerProxyRestarting", `outrigger_agent_proxy_restarts_total{namespace="shop",pod="cart-0"} 0+1x120`},
	{"OutriggerProxyDisconnected", `envoy_control_plane_connected_state{namespace="shop",pod="cart-0"} 0x120`},
	{"OutriggerProxyDisconnected", `outrigger_agent_mirror_failures_total{namespace="shop",pod="cart-0"} 0+1x120`},
	{"OutriggerSidecarNotReady", `outrigger_agent_ready{namespace="shop",pod="cart-0"} 0x120`},
	{"OutriggerSidecarUnreachable", `up{job="osm-system/outrigger-sidecars",namespace="shop",pod="cart-0",instance="10.1.0.2:15010"} 0x120`},
	{"OutriggerSidecarUnreachable", `up{job="osm-system/outrigger-sidecars",namespace="shop",pod="cart-0",instance="10.1.0.2:15901"} 0x120`},
	{"OutriggerHighErrorRate", `outrigger_requests_total{reporter="source",destination_namespace="shop",destination_service="cart",response_code="503",grpc_status=""} 0+100x120`},
	{"OutriggerHighErrorRate", `outrigger_requests_total{reporter="source",destination_namespace="shop",destination_service="new",response_code="200",grpc_status="14"} 0+100x120`},
	{"", `outrigger_requests_total{reporter="source",destination_namespace="shop",destination_service="new",response_code="503",grpc_status=""} 0+1x120`},
	{"OutriggerHighLatency", `outrigger_request_duration_seconds_bucket{reporter="source",destination_namespace="shop",destination_service="cart",le="1"} 0x120; outrigger_request_duration_seconds_bucket{reporter="source",destination_namespace="shop",destination_service="cart",le="2.5"} 0+600x120; outrigger_request_duration_seconds_bucket{reporter="source",destination_namespace="shop",destination_service="cart",le="+Inf"} 0+600x120; outrigger_request_duration_seconds_bucket{reporter="source",destination_namespace="shop",destination_service="cart",le="0.1"} 0x120`},
	{"OutriggerNoEndpoint", `outrigger_denied_total{reporter="source",reason="no_endpoint",destination_namespace="shop",destination_service="cart"} 0+1x120`},
	{"OutriggerAccessDenied", `outrigger_denied_total{reporter="destination",reason="access",destination_namespace="shop",destination_workload="cart"} 0+1x120`},
	{"OutriggerPlaintextRefused", `outrigger_denied_total{reporter="destination",reason="plaintext",destination_namespace="shop",destination_workload="cart"} 0+1x120`},
	{"OutriggerCertificateRefused", `outrigger_denied_total{reporter="destination",reason="certificate",destination_namespace="shop",destination_workload="cart"} 0+1x120`},
}

// TestAlertsFire lets promtool evaluate the alerts for two hours of each fault, and for a healthy
// mesh. Every alert must fire for a fault.
func TestAlertsFire(t *testing.T) {
	promtool := filepath.Join(programs(t), "promtool")
	rules, err := filepath.Abs("../../charts/outrigger/monitoring/" + monitoring.RulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tests := []map[string]any{unitTest("healthy", "", healthy)}
	fired := map[string]bool{}
	for _, f := range faults {
		with := strings.Split(f.series, "; ")
		series := slices.DeleteFunc(slices.Clone(healthy), func(of string) bool {
			return slices.ContainsFunc(with, func(by string) bool { return name(by) == name(of) })
		})
		tests = append(tests, unitTest(f.series, f.alerts, append(series, with...)))
		for alert := range strings.FieldsSeq(f.alerts) {
			fired[alert] = true
		}
	}
	for _, group := range monitoring.Rules() {
		for _, a := range group.Rules {
			if !fired[a.Name] {
				t.Errorf("%s has no fault", a.Name)
			}
		}
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "alerts.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// name returns a series without its values.
func name(series string) string { return series[:strings.LastIndex(series, " ")] }

// unitTest is a test of promtool: only these alerts fire.
func unitTest(title, alerts string, series []string) map[string]any {
	var input []map[string]any
	for _, s := range series {
		input = append(input, map[string]any{"series": name(s), "values": s[len(name(s))+1:]})
	}
	want := []map[string]any{}
	for alert := range strings.FieldsSeq(alerts) {
		want = append(want, map[string]any{"labels": fmt.Sprintf("{alertname=%q}", alert), "value": 1})
	}
	return map[string]any{
		"name": title, "interval": "1m", "input_series": input,
		"promql_expr_test": []map[string]any{{
			"expr": `group by (alertname) (ALERTS{alertstate="firing"})`, "eval_time": "110m", "exp_samples": want,
		}},
	}
}
