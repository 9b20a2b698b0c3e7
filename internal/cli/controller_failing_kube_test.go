package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
)

// testFailing lets agents report proxies that keep crashing, and reads their Events as kubectl
// does.
func (c *controllerTest) testFailing(t *testing.T, first, second *replica) {
	pod := c.injectedPod(t, "shop", "broken")
	report := func(p *peer, how string) error {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+p.token), 30*time.Second)
		defer cancel()
		_, err := identityv1.NewIdentityClient(p.dial(t, "15129")).Report(ctx, &identityv1.ReportRequest{Failing: true, How: how, Starts: 3})
		return err
	}
	const missing = `exec: "envoy": executable file not found in $PATH`
	const event = "Warning ProxyFailing pod/broken the proxy does not stay up: " + missing
	for i, r := range []*replica{first, first, second, first} {
		how := missing
		if i > 1 {
			how = "exit code 1"
		}
		if err := report(c.peerOf(t, r, pod, identity.Audience), how); err != nil {
			t.Fatal(err)
		}
	}
	if err := same([]string{event}, c.printedEvents(t, "shop", "broken")); err != nil {
		t.Error("the pod's Events ", err)
	}
	for _, r := range []*replica{first, second} {
		text, err := get("http://" + r.host + ":9092/debug/proxy")
		if err != nil || !strings.Contains(text, `"Failing"`) || !strings.Contains(text, "exit code 1") {
			t.Errorf("the controller's list is %s, %v", text, err)
		}
	}

	// Its replacement is another pod, although it has the same name.
	if err := c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	again := c.peerOf(t, first, c.injectedPod(t, "shop", "broken"), identity.Audience)
	eventually(t, "the next pod is known", func() error { return report(again, missing) })
	if err := same([]string{event, event}, c.printedEvents(t, "shop", "broken")); err != nil {
		t.Error("the Events of both pods ", err)
	}

	outside := c.injectedPod(t, "elsewhere", "broken")
	if err := report(c.peerOf(t, first, outside, identity.Audience), missing); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a pod outside of the mesh reports: %v", err)
	}
	if got := c.printedEvents(t, "elsewhere", "broken"); len(got) > 0 {
		t.Errorf("a pod outside of the mesh has the Events %q", got)
	}
}

// printedEvents returns the output of 'kubectl get events' about a pod, without the time.
func (c *controllerTest) printedEvents(t *testing.T, namespace, pod string) []string {
	t.Helper()
	table, err := tableOf(t.Context(), c.server.Config, "/api/v1/namespaces/"+namespace+"/events",
		"involvedObject.kind=Pod,involvedObject.name="+pod)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, row := range table.Rows {
		var line []string
		for i, column := range table.ColumnDefinitions {
			// kubectl shows the others with -o wide.
			if column.Priority == 0 && column.Name != "Last Seen" {
				line = append(line, fmt.Sprint(row.Cells[i]))
			}
		}
		lines = append(lines, strings.Join(line, " "))
	}
	return lines
}

// tableOf requests objects as a table, as kubectl does to print them.
func tableOf(ctx context.Context, config *rest.Config, path, selector string) (*metav1.Table, error) {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	host.Path, host.RawQuery = path, url.Values{"fieldSelector": {selector}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	var table metav1.Table
	return &table, json.NewDecoder(response.Body).Decode(&table)
}
