package monitoring

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// controlPlaneDashboard shows the controllers and injectors.
func controlPlaneDashboard() *Dashboard {
	window := fromDashboard
	ours := like(labelJob, controlPlaneJobs)
	by := func(label string) string { return "{{" + label + "}}" }
	class := by(metric.LabelClass)

	d := newDashboard("control-plane", "Control plane", "The controllers with the proxies that they serve, and the injectors.")

	d.row("At a glance")
	d.stat("Controllers", "Controllers that Prometheus can reach.", unitCount, sum(series(up, is(labelJob, controllerJob))))
	d.stat("Injectors", "Injectors that Prometheus can reach.", unitCount, sum(series(up, like(labelJob, injectorJobs))))
	d.stat("Leaders", "Controllers that write to the cluster, which should be one.", unitCount, sum(series(leaderStatus, is(leaderName, leaderElection))))
	d.stat("Proxies", "Proxies that are connected to a controller.", unitCount, sum(metric.ProxiesConnected))
	d.stat("Problems", "Objects whose content has no effect or is wrong, by reason.", unitCount, orZero(sum(metric.Problems)))
	d.stat("Pods without sidecar", "Pods that run without the sidecar that they should have.", unitCount, orZero(sum(metric.UninjectedPods)))

	d.row("Configuration")
	d.graph("Connected", "By class.", unitCount, query{sum(metric.ProxiesConnected, metric.LabelClass), class})
	d.graph("Not up to date", "Behind: no progress for a minute. Rejecting: the proxy refuses a part of its configuration. Failing: it does not stay up.", unitCount,
		query{sum(metric.ProxiesBehind), "behind"}, query{orZero(sum(metric.ProxiesRejecting)), "rejecting"}, query{orZero(sum(metric.ProxiesFailing)), "failing"})
	d.graph("Time until a change arrives", "From a change in the mesh until a proxy runs the resulting configuration.", unitSeconds,
		query{quantile(0.5, metric.ConfigPropagation, window, nil), "p50"}, query{quantile(0.99, metric.ConfigPropagation, window, nil), "p99"})
	d.graph("Configurations", "", unitOps,
		query{sum(rate(metric.ConfigsSent, window)), "sent"}, query{sum(rate(metric.ConfigsAcked, window)), "accepted"}, query{orZero(sum(rate(metric.ConfigsRejected, window))), "rejected"})
	d.graph("Bytes sent", "By class.", unitByteRate, query{sum(rate(metric.ConfigBytes, window), metric.LabelClass), class})
	d.graph("Resources sent", "By class.", unitOps, query{sum(rate(metric.ConfigResources, window), metric.LabelClass), class})

	d.row("Certificates")
	d.graph("Issued", "By purpose.", unitOps, query{sum(rate(metric.CertificatesIssued, window), metric.LabelPurpose), by(metric.LabelPurpose)})
	d.graph("Time to issue", "", unitSeconds,
		query{quantile(0.5, metric.IssueDuration, window, nil), "p50"}, query{quantile(0.99, metric.IssueDuration, window, nil), "p99"})
	d.graph("Refused requests", "By reason.", unitOps, query{sum(rate(metric.SigningRefusals, window), metric.LabelReason), by(metric.LabelReason)})
	d.graph("Roots expire in", "By the beginning of the root's SHA-256.", unitSeconds, query{fmt.Sprintf("min by (%s) (%s) - time()", metric.LabelRoot, metric.RootExpiry), by(metric.LabelRoot)})
	d.graph("Certificates of the control plane expire in", "", unitSeconds,
		query{fmt.Sprintf("min(%s) - time()", metric.ControllerCertificateExpiry), "controller"}, query{fmt.Sprintf("min(%s) - time()", metric.InjectorCertificateExpiry), "webhook"})
	d.graph("Reads of roots", "Requests to issuers for their roots, by result.", unitOps, query{sum(rate(metric.RootRefreshes, window), metric.LabelResult), by(metric.LabelResult)})

	d.row("Injection")
	d.graph("Decisions", "Pods, by outcome.", unitOps, query{sum(rate(metric.InjectorDecisions, window), metric.LabelOutcome), by(metric.LabelOutcome)})
	d.graph("Time to answer", "Of admission reviews.", unitSeconds,
		query{quantile(0.5, metric.InjectorDuration, window, nil), "p50"}, query{quantile(0.99, metric.InjectorDuration, window, nil), "p99"})
	d.graph("Patches of the caBundle", "By result. They happen when the webhook's CA changes.", unitOps, query{sum(rate(metric.InjectorCABundlePatches, window), metric.LabelResult), by(metric.LabelResult)})

	d.row("Processes")
	d.graph("CPU", "Cores.", unitCores, query{sum(rate(series(processCPU, ours), window), labelJob, labelInstance), "{{" + labelJob + "}} {{" + labelInstance + "}}"})
	d.graph("Memory", "", unitBytes, query{sum(series(processMemory, ours), labelJob, labelInstance), "{{" + labelJob + "}} {{" + labelInstance + "}}"})
	d.graph("Problems by reason", "", unitCount, query{orZero(sum(metric.Problems, metric.LabelReason)), by(metric.LabelReason)})
	return d
}
