package monitoring

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// meshDashboard shows the services of the mesh as their clients see them.
func meshDashboard() *Dashboard {
	source := is(telemetry.LabelReporter, telemetry.ReporterSource)
	chosen := like(telemetry.LabelDestinationNamespace, "$namespace")
	at := []string{source, chosen}
	service := []string{telemetry.LabelDestinationNamespace, telemetry.LabelDestinationService}
	const legend = "{{" + telemetry.LabelDestinationNamespace + "}}/{{" + telemetry.LabelDestinationService + "}}"
	window := fromDashboard

	d := newDashboard("mesh", "Mesh", "Requests between the services of the mesh, as the sidecars of their clients count them.",
		orAll(values("namespace", "Namespace of the service", telemetry.LabelDestinationNamespace,
			fmt.Sprintf("count by (%s) (%s)", telemetry.LabelDestinationNamespace, series(telemetry.Requests, source)))))

	d.row("At a glance")
	d.stat("Requests", "HTTP and gRPC requests in a second.", unitRequests, requests(window, at))
	d.stat("Success", "The share of requests that did not fail through the fault of the server or the network: no 5xx, no missing answer, no gRPC status of a server's error.", unitShare, success(window, at))
	d.stat("Latency, p99", "99 of 100 requests were answered within this time.", unitSeconds, quantile(0.99, telemetry.RequestDuration, window, at))
	d.stat("Mutual TLS", "The share of requests over mutual TLS of the mesh.", unitShare,
		fmt.Sprintf("(%s or 0 * %s) / %s", requests(window, append([]string{is(telemetry.LabelTLS, telemetry.MutualTLS)}, at...)), requests(window, at), requests(window, at)))
	d.stat("TCP connections", "TCP connections that began in a second, HTTP not included. HAProxy counts them when they end.", unitOps, orZero(sum(rate(series(telemetry.Connections, at...), window))))
	d.stat("Refused", "Requests and connections that sidecars of clients and servers refused in a second.", unitOps, orZero(sum(rate(series(telemetry.Denied, chosen), window))))

	d.row("Services")
	d.table("All services", "Current values of each service.",
		column{"Requests", unitRequests, requests(window, at, service...)},
		column{"Success", unitShare, success(window, at, service...)},
		column{"p50", unitSeconds, quantile(0.5, telemetry.RequestDuration, window, at, service...)},
		column{"p99", unitSeconds, quantile(0.99, telemetry.RequestDuration, window, at, service...)})
	d.graph("Requests by service", "", unitRequests, query{requests(window, at, service...), legend})
	d.graph("Success by service", "", unitShare, query{success(window, at, service...), legend})
	d.graph("Latency by service, p99", "", unitSeconds, query{quantile(0.99, telemetry.RequestDuration, window, at, service...), legend})
	d.graph("Response codes", "0 means that there was no answer.", unitRequests, query{requests(window, at, telemetry.LabelResponseCode), "{{" + telemetry.LabelResponseCode + "}}"})
	d.graph("gRPC statuses", "The numbers of gRPC's statuses; 0 is OK.", unitRequests,
		query{requests(window, append([]string{isNot(telemetry.LabelGRPCStatus, "")}, at...), telemetry.LabelGRPCStatus), "{{" + telemetry.LabelGRPCStatus + "}}"})
	d.graph("Retries by service", "Repetitions of requests by the sidecars of clients.", unitRequests, query{sum(rate(series(telemetry.Retries, at...), window), service...), legend})

	d.row("Security")
	d.graph("Requests by TLS", "mutual: both ends have verified the other's identity; tls: only the server has shown a certificate; none: plaintext.", unitRequests,
		query{requests(window, at, telemetry.LabelTLS), "{{" + telemetry.LabelTLS + "}}"})
	d.graph("Refused by reason", "docs/observe.md explains the reasons.", unitOps,
		query{sum(rate(series(telemetry.Denied, chosen), window), telemetry.LabelReporter, telemetry.LabelReason), "{{" + telemetry.LabelReason + "}}, {{" + telemetry.LabelReporter + "}}"})
	d.graph("Refused by service account of the client", "What servers have refused. Without a certificate the client is unknown.", unitOps,
		query{sum(rate(series(telemetry.Denied, is(telemetry.LabelReporter, telemetry.ReporterDestination), chosen), window), telemetry.LabelSourceNamespace, telemetry.LabelSourceServiceAccount),
			"{{" + telemetry.LabelSourceNamespace + "}}/{{" + telemetry.LabelSourceServiceAccount + "}}"})

	d.row("TCP and sidecar classes")
	d.graph("TCP connections by service", "Connections that began. HAProxy counts them when they end.", unitOps, query{sum(rate(series(telemetry.Connections, at...), window), service...), legend})
	d.graph("TCP bytes", "Bytes of TCP connections. HAProxy counts them when connections end.", unitByteRate,
		query{sum(rate(series(telemetry.ReceivedBytes, at...), window)), "sent by clients"},
		query{sum(rate(series(telemetry.SentBytes, at...), window)), "sent by servers"})
	d.graph("Requests by class of the client's sidecar", "", unitRequests, query{requests(window, at, telemetry.LabelClass), "{{" + telemetry.LabelClass + "}}"})
	return d
}
