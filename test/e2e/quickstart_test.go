//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// testQuickStart runs the commands of docs/quickstart.md on a cluster without the mesh. The
// test's nodes have no registry, so it replaces the images and their commands.
func (c *cluster) testQuickStart(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(c.root, "docs", "quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), "\\\n", "")
	saved := regexp.MustCompile("(?ms)^```yaml file=gateway.yaml\n(.*?)^```$").FindStringSubmatch(page)
	if saved == nil {
		t.Fatal("the page has no file gateway.yaml")
	}
	gateway := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(gateway, []byte(saved[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	const released = "https://github.com/kubernetes-sigs/gateway-api/releases/download/v1.6.3/standard-install.yaml"
	here := strings.NewReplacer(
		"--image=nginx --port=80", "--image="+appImage()+" --port=8080 -- /app serve",
		"expose deployment web -n hello --port=80", "expose deployment web -n hello --port=80 --target-port=8080",
		"--image=curlimages/curl -- sleep infinity", "--image="+appImage()+" -- /app serve",
		"-- curl -s http://web/", "-- /app once -url http://web/",
		"-f "+released, "-f "+c.gatewayAPI(t),
		"-f gateway.yaml", "-f "+gateway,
		// A pod outside the mesh: the test's nodes have no load balancer.
		"curl -s http://$(", "kubectl run outside -n default --rm -i --quiet --restart=Never --image="+appImage()+" --command -- /app once -url http://$(",
	)
	t.Cleanup(func() {
		// The test's context has ended. After a success there is nothing left to delete.
		_, _ = c.output(context.Background(), "", c.kubectl, "delete", "namespace", "hello", "--ignore-not-found", "--timeout=60s")
		_, _ = c.output(context.Background(), "", c.outrigger, "uninstall", "--purge", "--yes")
	})
	began := time.Now()
	for line := range strings.Lines(page) {
		command, found := strings.CutPrefix(line, "    ")
		if !found {
			continue
		}
		command = here.Replace(strings.TrimSpace(command))
		if command == "outrigger uninstall --purge" {
			command += " --yes" // There is nobody to ask.
		}
		want := 0
		if strings.HasPrefix(command, "outrigger explain") {
			want = 3 // The page says that the request is refused.
		}
		// A pod of a new Deployment is not ready at once.
		c.eventually(t, 2*time.Minute, command, func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, "bash", "-c", `set -e; outrigger() { "$OUTRIGGER" "$@"; }; kubectl() { "$KUBECTL" "$@"; }; `+command)
			cmd.Env = append(os.Environ(), "OUTRIGGER="+c.outrigger, "KUBECTL="+c.kubectl)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() == want {
				return nil
			}
			if err != nil || want != 0 {
				return errors.New(string(out))
			}
			return nil
		})
		if strings.Contains(command, "outrigger check") && !strings.Contains(command, "--pre") {
			t.Logf("the first request with mTLS was made and the mesh was checked after %s", time.Since(began).Round(time.Second))
		}
	}
}
