package monitoring

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

func controllerAlerts() []Alert {
	return []Alert{
		alert("OutriggerControllerDown", critical, "5m",
			"absent("+series(up, is(labelJob, controllerJob))+" == 1)",
			"No controller can be reached: proxies keep their last configuration, and certificates are not renewed."),
		alert("OutriggerLeaderMissing", warning, "10m",
			sum(series(leaderStatus, is(leaderName, leaderElection)))+" == 0",
			"No controller is the leader: objects get no status and no Events, and pods without a sidecar are not reported."),
		alert("OutriggerConfigurationSlow", warning, "10m",
			above(quantile(0.99, metric.ConfigPropagation, fromAlert, nil), "5"),
			"Changes take "+asDuration+" to reach the proxies (p99)."),
		alert("OutriggerProblems", warning, "15m",
			above(sum(metric.Problems, metric.LabelKind, metric.LabelNamespace, metric.LabelName, metric.LabelReason), "0"),
			"A part of "+label(metric.LabelKind)+" "+label(metric.LabelNamespace)+"/"+label(metric.LabelName)+" has no effect: "+label(metric.LabelReason)+"."),
		alert("OutriggerMTLSDisabled", warning, "5m",
			above("max by ("+metric.LabelClass+") ("+metric.MTLSDisabled+")", "0"),
			"Pods with sidecars of class "+label(metric.LabelClass)+" use plaintext within the mesh."),
		alert("OutriggerPodsWithoutSidecar", warning, "15m",
			above(sum(metric.UninjectedPods, metric.LabelNamespace), "0"),
			asNumber+" pods of namespace "+label(metric.LabelNamespace)+" run without the sidecar that they should have."),
	}
}

func injectorAlerts() []Alert {
	return []Alert{
		alert("OutriggerInjectorDown", critical, "5m",
			fmt.Sprintf("%s == 0 or absent(%s)", sum(series(up, like(labelJob, injectorJobs)), labelJob), series(up, like(labelJob, injectorJobs))),
			"No injector can be reached: pods cannot be created in namespaces of the mesh."),
		alert("OutriggerInjectorSlow", warning, "10m",
			above(quantile(0.99, metric.InjectorDuration, fromAlert, nil), "1"),
			"Admission reviews take "+asDuration+" (p99); the API server waits only some seconds."),
		alert("OutriggerInjectorDenies", warning, "10m",
			above(sum(rate(series(metric.InjectorDecisions, is(metric.LabelOutcome, outcomeDeny)), fromAlert), metric.LabelReason), "0"),
			"Pods are denied: "+label(metric.LabelReason)+"."),
		alert("OutriggerInjectorBadRequests", warning, "10m",
			above(sum(rate(metric.InjectorBadRequests, fromAlert), metric.LabelCode), "0"),
			"The injector answers requests with HTTP status "+label(metric.LabelCode)+", because they are no admission reviews."),
		alert("OutriggerInjectionConfigInvalid", warning, "5m",
			"min("+metric.InjectorConfigLoaded+") == 0",
			"The injection config or its values are invalid; an injector uses older ones."),
		alert("OutriggerCABundleNotUpdated", critical, "10m",
			above(sum(increase(series(metric.InjectorCABundlePatches, like(metric.LabelResult, metric.ResultError+"|"+metric.ResultMissing)), "15m"), metric.LabelResult), "0"),
			"The injector cannot write the caBundle of its webhook configuration ("+label(metric.LabelResult)+"): once its CA changes, pods cannot be created."),
		alert("OutriggerInjectorCertificateExpiring", critical, "5m",
			overdue(metric.InjectorCertificateExpiry),
			"The webhook's certificate or its CA expires in "+asDuration+": after that pods cannot be created."),
	}
}

// outcomeDeny is the injector's outcome for pods that it denies.
const outcomeDeny = "deny"

func certificateAlerts() []Alert {
	root := "min by (" + metric.LabelRoot + ") (" + metric.RootExpiry + ")"
	expires := func(when string) string {
		return "The root " + label(metric.LabelRoot) + " expires in " + asDuration + ": " + when
	}
	return []Alert{
		alert("OutriggerRootExpiring", warning, "1h", until(root, 30*day), expires("replace it in time.")),
		alert("OutriggerRootExpiresSoon", critical, "1h", until(root, 7*day), expires("after that no request in the mesh succeeds.")),
		alert("OutriggerControllerCertificateExpiring", critical, "5m",
			overdue(metric.ControllerCertificateExpiry),
			"A controller's certificate expires in "+asDuration+": after that it cannot serve proxies."),
		alert("OutriggerWorkloadCertificateExpiring", critical, "5m",
			fmt.Sprintf("%s and on (%s, %s) %s", until(metric.AgentCertificateExpiry, hour), labelNamespace, labelPod,
				above(sum(increase(metric.AgentCertificateFailures, "30m"), labelNamespace, labelPod), "0")),
			"The certificate of pod "+label(labelNamespace)+"/"+label(labelPod)+" expires in less than an hour and cannot be renewed."),
		alert("OutriggerCertificateFailures", warning, "15m",
			above(sum(increase(metric.AgentCertificateFailures, "15m"), labelNamespace, labelPod, metric.LabelReason), "0"),
			"Pod "+label(labelNamespace)+"/"+label(labelPod)+" cannot obtain a certificate: "+label(metric.LabelReason)+"."),
		alert("OutriggerSigningErrors", critical, "5m",
			above(sum(rate(series(metric.SigningRefusals, like(metric.LabelReason, "unavailable|timeout|internal")), fromAlert), metric.LabelReason), "0"),
			"The controllers cannot issue certificates: "+label(metric.LabelReason)+"."),
		alert("OutriggerRootRefreshFailing", warning, "15m",
			above(sum(increase(series(metric.RootRefreshes, is(metric.LabelResult, metric.ResultError)), "15m")), "0"),
			"The controllers cannot read the roots of an issuer."),
	}
}

func proxyAlerts() []Alert {
	ofClass := asNumber + " proxies of class " + label(metric.LabelClass)
	pod := label(labelNamespace) + "/" + label(labelPod)
	return []Alert{
		alert("OutriggerProxiesRefused", critical, "5m",
			above(sum(rate(metric.ProxiesRefused, fromAlert), metric.LabelClass), "0"),
			"Proxies of class "+label(metric.LabelClass)+" are turned away, because too many are connected."),
		alert("OutriggerProxiesBehind", warning, "5m",
			above(sum(metric.ProxiesBehind, metric.LabelClass), "0"),
			ofClass+" do not take their latest configuration."),
		alert("OutriggerProxiesRejecting", warning, "5m",
			above(sum(metric.ProxiesRejecting, metric.LabelClass), "0"),
			ofClass+" refuse a part of their configuration."),
		alert("OutriggerProxiesFailing", critical, "5m",
			above(sum(metric.ProxiesFailing, metric.LabelNamespace), "0"),
			asNumber+" proxies in namespace "+label(metric.LabelNamespace)+" do not stay up."),
		alert("OutriggerProxyRestarting", warning, "5m",
			above(sum(increase(metric.AgentProxyRestarts, "30m"), labelNamespace, labelPod), "2"),
			"The proxy of pod "+pod+" has restarted "+asNumber+" times in half an hour."),
		alert("OutriggerProxyDisconnected", warning, "15m",
			fmt.Sprintf("min by (%[1]s, %[2]s) (%[3]s) == 0 or %[4]s", labelNamespace, labelPod, envoyControlPlane,
				above(sum(increase(metric.AgentMirrorFailures, fromAlert), labelNamespace, labelPod), "0")),
			"The sidecar of pod "+pod+" has no connection to a controller."),
		alert("OutriggerSidecarNotReady", warning, "15m",
			series(metric.AgentReady)+" == 0",
			"The sidecar of pod "+pod+" is not ready."),
		alert("OutriggerSidecarUnreachable", warning, "15m",
			fmt.Sprintf("min by (%s, %s) (%s) == 0", labelNamespace, labelPod, series(up, like(labelJob, sidecarJobs))),
			"Prometheus cannot read the metrics of the sidecar of pod "+pod+", or those of its agent."),
	}
}

func trafficAlerts() []Alert {
	source := []string{is(telemetry.LabelReporter, telemetry.ReporterSource)}
	service := []string{telemetry.LabelDestinationNamespace, telemetry.LabelDestinationService}
	serviceName := label(telemetry.LabelDestinationNamespace) + "/" + label(telemetry.LabelDestinationService)
	// A single failure of a rarely used service is no reason to wake somebody.
	busy := " and " + above(requests(fromAlert, source, service...), "0.1")
	// What a server has refused, by reasons.
	refused := func(reason string) string {
		return above(sum(rate(series(telemetry.Denied, is(telemetry.LabelReporter, telemetry.ReporterDestination), is(telemetry.LabelReason, reason)), fromAlert),
			telemetry.LabelDestinationNamespace, telemetry.LabelDestinationWorkload), "0")
	}
	workload := label(telemetry.LabelDestinationNamespace) + "/" + label(telemetry.LabelDestinationWorkload)
	return []Alert{
		alert("OutriggerHighErrorRate", warning, "10m",
			"1 - "+success(fromAlert, source, service...)+" > 0.05"+busy,
			asShare+" of the requests to "+serviceName+" fail."),
		alert("OutriggerHighLatency", warning, "10m",
			above(quantile(0.99, telemetry.RequestDuration, fromAlert, source, service...), "1")+busy,
			"Requests to "+serviceName+" take "+asDuration+" (p99)."),
		alert("OutriggerNoEndpoint", warning, "10m",
			above(sum(rate(series(telemetry.Denied, is(telemetry.LabelReporter, telemetry.ReporterSource), is(telemetry.LabelReason, telemetry.ReasonNoEndpoint)), fromAlert), service...), "0"),
			"Requests to "+serviceName+" fail, because no endpoint can be called."),
		alert("OutriggerAccessDenied", info, "10m", refused(telemetry.ReasonAccess),
			workload+" refuses requests or connections that no policy allows."),
		alert("OutriggerPlaintextRefused", warning, "10m", refused(telemetry.ReasonPlaintext),
			workload+" refuses plaintext; clients outside of the mesh may need an IngressBackend or the permissive mode."),
		alert("OutriggerCertificateRefused", warning, "10m", refused(telemetry.ReasonCertificate),
			workload+" refuses certificates of clients, or they refuse its certificate."),
	}
}
