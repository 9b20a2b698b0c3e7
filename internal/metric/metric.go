// Package metric has the names of the metrics that the control plane and the agents export,
// and the labels of those that alerts and dashboards use. The packages that count use them, and
// so does internal/monitoring, which makes the queries.
//
// The metrics of requests are in sidecar/telemetry, because drivers use them too. docs/debug.md
// and docs/agent.md explain what is here. The package imports nothing: the agent in every pod
// uses it.
package metric

// The proxies of a controller, by LabelClass unless their comment says otherwise.
const (
	ProxiesConnected = "outrigger_proxies_connected"
	ProxiesBehind    = "outrigger_proxies_behind"
	ProxiesByVersion = "outrigger_proxies_by_version" // by LabelClass and LabelVersion
	// ProxiesByKeyExchange is by LabelClass and LabelKeyExchange.
	ProxiesByKeyExchange = "outrigger_proxies_by_key_exchange"
	ProxiesRejecting     = "outrigger_proxies_rejecting"
	ProxiesFailing       = "outrigger_proxies_failing" // by LabelNamespace
	ProxiesRefused       = "outrigger_proxies_refused_total"
	ConfigsSent          = "outrigger_proxy_configs_sent_total"
	ConfigsAcked         = "outrigger_proxy_configs_acked_total"
	ConfigsRejected      = "outrigger_proxy_configs_rejected_total"
	ConfigResources      = "outrigger_proxy_config_resources_total"
	ConfigBytes          = "outrigger_proxy_config_bytes_total"
	ConfigPropagation    = "outrigger_proxy_config_seconds"
)

// The signing service of a controller.
const (
	CertificatesIssued          = "outrigger_identity_certificates_issued_total"
	IssueDuration               = "outrigger_identity_issue_duration_seconds"
	SigningRefusals             = "outrigger_identity_refusals_total"
	SigningConnectionsRefused   = "outrigger_identity_connections_refused_total"
	RootRefreshes               = "outrigger_identity_root_refreshes_total"
	RootExpiry                  = "outrigger_identity_root_expiry_timestamp_seconds"
	ControllerCertificateExpiry = "outrigger_identity_controller_certificate_expiry_timestamp_seconds"
)

// What the controller that is the leader reports about the cluster.
const (
	Problems       = "outrigger_problems"
	MTLSDisabled   = "outrigger_mtls_disabled"
	UninjectedPods = "outrigger_uninjected_pods"
	UpgradePods    = "outrigger_upgrade_pods" // by LabelClass and LabelState
)

// The injector.
const (
	InjectorDecisions           = "outrigger_injector_decisions_total"
	InjectorDuration            = "outrigger_injector_request_duration_seconds"
	InjectorBadRequests         = "outrigger_injector_bad_requests_total"
	InjectorConfigReloads       = "outrigger_injector_config_reloads_total"
	InjectorConfigLoaded        = "outrigger_injector_config_last_reload_successful"
	InjectorCertificateExpiry   = "outrigger_injector_certificate_expiry_timestamp_seconds"
	InjectorCertificateRenewals = "outrigger_injector_certificate_renewals_total"
	InjectorCABundlePatches     = "outrigger_injector_ca_bundle_patches_total"
)

// The agent of a pod.
const (
	AgentCertificateExpiry   = "outrigger_agent_certificate_expiry_timestamp_seconds"
	AgentCertificatesIssued  = "outrigger_agent_certificates_issued_total"
	AgentCertificateFailures = "outrigger_agent_certificate_failures_total"
	AgentProxyRestarts       = "outrigger_agent_proxy_restarts_total"
	AgentProxyReloads        = "outrigger_agent_proxy_reloads_total"
	AgentProxyUpgrades       = "outrigger_agent_proxy_upgrades_total"
	AgentMirrorVersions      = "outrigger_agent_mirror_versions_total"
	AgentMirrorFailures      = "outrigger_agent_mirror_failures_total"
	AgentProbes              = "outrigger_agent_probes_total"
	AgentSpans               = "outrigger_agent_spans_total"
	AgentRecords             = "outrigger_agent_records_total"
	AgentUnknown             = "outrigger_agent_unknown_connections_total"
	AgentReady               = "outrigger_agent_ready"
)

// The labels.
const (
	LabelClass       = "class"
	LabelVersion     = "version"
	LabelNamespace   = "namespace"
	LabelKeyExchange = "key_exchange"
	LabelKind        = "kind"
	LabelName        = "name"
	LabelReason      = "reason"
	LabelCode        = "code"
	LabelResult      = "result"
	LabelOutcome     = "outcome"
	LabelPurpose     = "purpose"
	LabelRoot        = "root"
	LabelState       = "state"
)

// Values of LabelResult.
const (
	ResultSuccess = "success"
	ResultError   = "error"
	// ResultFailure is that of InjectorConfigReloads.
	ResultFailure = "failure"
	// ResultConflict and ResultMissing are those of InjectorCABundlePatches only.
	ResultConflict = "conflict"
	ResultMissing  = "missing"
	// ResultRefused is that of AgentMirrorVersions.
	ResultRefused = "refused"
)
