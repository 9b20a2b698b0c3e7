package scrape

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

const (
	// targetNamespace, targetPod and targetInstance are the labels that Prometheus adds to
	// what it scrapes. A PodMonitor adds the first two.
	targetNamespace = "namespace"
	targetPod       = "pod"
	targetInstance  = "instance"
	// maxResult limits an answer of Prometheus, in bytes.
	maxResult = 256 << 20
)

// Prometheus returns what proxies have counted until now, from the Prometheus that scrapes
// them. With the period 0 it returns what they have counted since they started. The report has
// only the pods and services that Prometheus knows, and not the kinds of workloads.
func Prometheus(ctx context.Context, server *url.URL, period time.Duration) (*traffic.Report, error) {
	targets := make(map[mesh.Name]*target)
	for _, metric := range telemetry.Metrics() {
		result, err := query(ctx, server, expression(metric, period))
		if err != nil {
			return nil, err
		}
		for _, s := range result {
			labels := make(map[string]string, len(s.Metric))
			for name, value := range s.Metric {
				labels[string(name)] = string(value)
			}
			targetOf(targets, labels).sample.Add(seriesName(metric), labels, float64(s.Value))
		}
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("the Prometheus at %s has no metric %s; it must scrape port 15010 of the pods, for which the chart has PodMonitors", server.Redacted(), telemetry.Requests)
	}
	return report(targets, period), nil
}

// target is a pod that Prometheus scrapes.
type target struct {
	pod    traffic.Pod
	sample traffic.Sample
}

func report(targets map[mesh.Name]*target, period time.Duration) *traffic.Report {
	out := &traffic.Report{}
	services := make(map[mesh.Name]bool)
	for _, t := range targets {
		t.pod.Read, t.pod.Seconds = true, period.Seconds()
		t.pod.Flows = traffic.Flows(&t.pod, nil, t.sample)
		for _, f := range t.pod.Flows {
			if f.Service != "" {
				services[mesh.Name{Namespace: f.Destination.Namespace, Name: f.Service}] = true
			}
		}
		out.Pods = append(out.Pods, t.pod)
	}
	slices.SortFunc(out.Pods, func(a, b traffic.Pod) int { return a.Name.Compare(b.Name) })
	out.Services = slices.SortedFunc(maps.Keys(services), mesh.Name.Compare)
	return out
}

// targetOf returns the target of a series, by what the series says about the end that reports.
func targetOf(targets map[mesh.Name]*target, labels map[string]string) *target {
	end := func(source, destination string) string {
		if labels[telemetry.LabelReporter] == telemetry.ReporterSource {
			return labels[source]
		}
		return labels[destination]
	}
	namespace := end(telemetry.LabelSourceNamespace, telemetry.LabelDestinationNamespace)
	name := mesh.Name{Namespace: cmp.Or(namespace, labels[targetNamespace]), Name: cmp.Or(labels[targetPod], labels[targetInstance])}
	if targets[name] == nil {
		targets[name] = &target{
			pod: traffic.Pod{
				Name:           name,
				Owner:          fact.Owner{Name: end(telemetry.LabelSourceWorkload, telemetry.LabelDestinationWorkload)},
				ServiceAccount: end(telemetry.LabelSourceServiceAccount, telemetry.LabelDestinationServiceAccount),
				Class:          labels[telemetry.LabelClass],
			},
			sample: make(traffic.Sample),
		}
	}
	return targets[name]
}

// seriesName returns the name of a metric's series or, for a histogram, of those of its
// buckets.
func seriesName(metric telemetry.Metric) string {
	if metric.Type == telemetry.Histogram {
		return metric.Name + "_bucket"
	}
	return metric.Name
}

// expression returns the PromQL for the increase of a metric.
func expression(metric telemetry.Metric, period time.Duration) string {
	by := slices.Concat(telemetry.Labels(), metric.Labels, []string{targetNamespace, targetPod, targetInstance})
	if metric.Type == telemetry.Histogram {
		by = append(by, model.BucketLabel)
	}
	of := seriesName(metric)
	if period > 0 {
		of = fmt.Sprintf("increase(%s[%s])", of, model.Duration(period))
	}
	return fmt.Sprintf("sum by (%s) (%s)", strings.Join(by, ", "), of)
}

// query asks Prometheus for the current value of an expression that is a vector.
func query(ctx context.Context, server *url.URL, expression string) (model.Vector, error) {
	body := strings.NewReader(url.Values{"query": {expression}}.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.JoinPath("api/v1/query").String(), body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking Prometheus: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResult))
	if err != nil {
		return nil, fmt.Errorf("asking Prometheus: %w", err)
	}
	var answer struct {
		Status string
		Error  string
		Data   struct {
			ResultType string
			Result     model.Vector
		}
	}
	err = json.Unmarshal(text, &answer)
	switch {
	case err != nil && response.StatusCode == http.StatusOK:
		return nil, fmt.Errorf("the answer of %s is not that of Prometheus: %w", server.Redacted(), err)
	case answer.Error != "":
		return nil, fmt.Errorf("asking Prometheus: %s", answer.Error)
	case response.StatusCode != http.StatusOK || answer.Status != "success":
		return nil, fmt.Errorf("asking Prometheus: %s answers %s", server.Redacted(), response.Status)
	}
	return answer.Data.Result, nil
}
