package playground

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPage does what docs/lab.md says, with Debian's packages where test/apps/install.sh has
// unpacked them.
func TestPage(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "lab.md"))
	if err != nil {
		t.Fatal(err)
	}
	steps := make(map[string]string)
	for _, m := range regexp.MustCompile("(?ms)^```yaml file=(\\S+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		steps[m[1]] = m[2]
	}
	if len(steps) != 3 {
		t.Fatalf("the page has %d files, want 3", len(steps))
	}
	if testing.Short() {
		t.Skip("SKIPPED: it needs nginx and Redis from Debian's packages; run 'make test-all'")
	}
	packages, err := exec.Command(filepath.Join(root, "test", "apps", "install.sh"), "few", "--where").Output()
	if err != nil {
		t.Fatal(err)
	}
	commands := new(Commands)
	if err := commands.AddRoot(strings.TrimSpace(string(packages))); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(commands.roots[0].folder); err != nil {
		t.Skip("SKIPPED: Debian's packages are not unpacked: run test/apps/install.sh few")
	}
	dir := filepath.Join(t.TempDir(), "shop")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "samples", "shop"))); err != nil {
		t.Fatal(err)
	}
	save := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(steps[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, problems, _ := start(t, dir, commands, 4)
	says := func(want string, args ...string) {
		t.Helper()
		var got string
		until(t, strings.Join(args, " ")+": "+want, func() bool {
			var err error
			got, _, err = execute(t, args[0], "", args[1:]...)
			return err == nil && regexp.MustCompile(want).MatchString(got)
		})
	}
	says(`^v[12]\n$`, "client", "curl", "-s", "http://web/")
	says(`^OK\n$`, "client", "redis-cli", "-h", "redis", "set", "book", "Outrigger")

	save("mesh.yaml")
	says(`^(52|56)\n$`, "client", "sh", "-c", "curl -s http://web/; echo $?")
	save("policy.yaml")
	says(`^v[12]\n$`, "client", "curl", "-s", "http://web/")
	says(`^RBAC: access denied`, "client", "curl", "-s", "-X", "POST", "http://web/")
	says(`^Outrigger\n$`, "client", "redis-cli", "-h", "redis", "get", "book")

	save("canary.yaml")
	count := "for i in $(seq 50); do curl -s http://web/; done | sort | uniq -c"
	says(`^ *(4\d|3[5-9]) v1\n`, "client", "sh", "-c", count)
	says(``, "web-v2", "touch", "/tmp/broken")
	says(`503`, "client", "sh", "-c", `for i in $(seq 50); do curl -s -o /dev/null -w "%{http_code}\n" http://web/; done`)
	steps["canary.yaml"] = strings.NewReplacer("90", "100", "10}", "0}").Replace(steps["canary.yaml"])
	save("canary.yaml")
	says(`^ *50 v1\n$`, "client", "sh", "-c", count)

	if _, _, err := execute(t, "redis", "", "redis-cli", "shutdown", "nosave"); err != nil {
		t.Error(err)
	}
	until(t, "a restart", func() bool { return strings.Contains(problems.String(), "restarting a container that has ended") })
	says(`^PONG\n$`, "client", "redis-cli", "-h", "redis", "ping")
}
