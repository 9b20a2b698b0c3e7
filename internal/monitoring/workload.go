package monitoring

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// workloadDashboard shows one workload: what its sidecars count as servers and as clients, and
// their agents.
func workloadDashboard() *Dashboard {
	const chosenNamespace, chosenWorkload = "$namespace", "$workload"
	server := is(telemetry.LabelReporter, telemetry.ReporterDestination)
	client := is(telemetry.LabelReporter, telemetry.ReporterSource)
	in := []string{server, is(telemetry.LabelDestinationNamespace, chosenNamespace), is(telemetry.LabelDestinationWorkload, chosenWorkload)}
	out := []string{client, is(telemetry.LabelSourceNamespace, chosenNamespace), is(telemetry.LabelSourceWorkload, chosenWorkload)}
	// The agents' metrics have no label of the workload, but the names of its pods begin with its name.
	pods := []string{is(labelNamespace, chosenNamespace), like(labelPod, chosenWorkload+"(-.*)?")}
	window := fromDashboard
	caller := []string{telemetry.LabelSourceNamespace, telemetry.LabelSourceServiceAccount}
	called := []string{telemetry.LabelDestinationNamespace, telemetry.LabelDestinationService}
	legend := func(labels []string) string { return "{{" + labels[0] + "}}/{{" + labels[1] + "}}" }

	d := newDashboard("workload", "Workload", "One workload: its requests as a server and as a client, and its sidecars.",
		values("namespace", "Namespace", "namespace", reporters("namespace", telemetry.LabelDestinationNamespace, telemetry.LabelSourceNamespace, nil, nil)),
		values("workload", "Workload", "workload", reporters("workload", telemetry.LabelDestinationWorkload, telemetry.LabelSourceWorkload, in[1:2], out[1:2])))

	d.row("At a glance")
	d.stat("Requests received", "HTTP and gRPC requests in a second, including refused ones.", unitRequests, orZero(requests(window, in)))
	d.stat("Success of received", "The share that did not fail through the fault of the server or the network.", unitShare, success(window, in))
	d.stat("Latency, p99", "99 of 100 requests received were answered within this time.", unitSeconds, quantile(0.99, telemetry.RequestDuration, window, in))
	d.stat("Requests sent", "HTTP and gRPC requests in a second.", unitRequests, orZero(requests(window, out)))
	d.stat("Sidecars", "Sidecars whose agents are ready.", unitCount, sum(series(metric.AgentReady, pods...)))
	d.stat("Certificates expire in", "The time until the first certificate of a pod expires. Agents renew them at two thirds of their life.", unitSeconds,
		fmt.Sprintf("min(%s) - time()", series(metric.AgentCertificateExpiry, pods...)))

	d.row("As a server")
	d.graph("Requests by client", "By the service account in the client's certificate.", unitRequests, query{requests(window, in, caller...), legend(caller)})
	d.graph("Success by client", "", unitShare, query{success(window, in, caller...), legend(caller)})
	d.graph("Latency", "Of requests received.", unitSeconds,
		query{quantile(0.5, telemetry.RequestDuration, window, in), "p50"}, query{quantile(0.95, telemetry.RequestDuration, window, in), "p95"}, query{quantile(0.99, telemetry.RequestDuration, window, in), "p99"})
	d.graph("Response codes", "0 means that there was no answer.", unitRequests, query{requests(window, in, telemetry.LabelResponseCode), "{{" + telemetry.LabelResponseCode + "}}"})
	d.graph("Refused", "By reason, which docs/observe.md explains.", unitOps, query{sum(rate(series(telemetry.Denied, in...), window), telemetry.LabelReason), "{{" + telemetry.LabelReason + "}}"})
	d.graph("Bytes of requests and answers", "", unitByteRate,
		query{sum(rate(series(telemetry.RequestBytes, in...), window)), "requests"}, query{sum(rate(series(telemetry.ResponseBytes, in...), window)), "answers"})

	d.row("As a client")
	d.graph("Requests by service", "", unitRequests, query{requests(window, out, called...), legend(called)})
	d.graph("Success by service", "", unitShare, query{success(window, out, called...), legend(called)})
	d.graph("Latency by service, p99", "", unitSeconds, query{quantile(0.99, telemetry.RequestDuration, window, out, called...), legend(called)})

	d.row("TCP")
	d.graph("Connections", "Connections that began. HAProxy counts them when they end.", unitOps,
		query{sum(rate(series(telemetry.Connections, in...), window)), "received"}, query{sum(rate(series(telemetry.Connections, out...), window)), "opened"})
	d.graph("Bytes received", "Bytes that clients sent in connections. HAProxy counts them when a connection ends.", unitByteRate, query{sum(rate(series(telemetry.ReceivedBytes, in...), window)), "received"})
	d.graph("Bytes answered", "Bytes that the workload sent to its clients in connections. HAProxy counts them when a connection ends.", unitByteRate, query{sum(rate(series(telemetry.SentBytes, in...), window)), "sent"})

	d.row("Pods")
	d.graph("Certificates by pod expire in", "", unitSeconds, query{series(metric.AgentCertificateExpiry, pods...) + " - time()", "{{" + labelPod + "}}"})
	d.graph("Restarts of the proxy", "In an hour.", unitCount, query{sum(increase(series(metric.AgentProxyRestarts, pods...), "1h"), labelPod), "{{" + labelPod + "}}"})
	d.graph("Probes of the application", "Probes that the agent passed on, by result.", unitOps, query{sum(rate(series(metric.AgentProbes, pods...), window), metric.LabelResult), "{{" + metric.LabelResult + "}}"})
	return d
}

// reporters is an expression with one series for each value that a label of the pod that reports
// has, as a server or as a client.
func reporters(name, asServer, asClient string, servers, clients []string) string {
	counted := like("__name__", telemetry.Requests+"|"+telemetry.Connections)
	end := func(reporter, label string, matchers []string) string {
		matchers = append([]string{counted, is(telemetry.LabelReporter, reporter)}, matchers...)
		return fmt.Sprintf(`label_replace(count by (%s) (%s), %q, "$1", %q, "(.+)")`, label, series("", matchers...), name, label)
	}
	return fmt.Sprintf("count by (%s) (%s or %s)", name,
		end(telemetry.ReporterDestination, asServer, servers), end(telemetry.ReporterSource, asClient, clients))
}
