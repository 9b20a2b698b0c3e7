package apiserver_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

func TestStart(t *testing.T) {
	client, err := discovery.NewDiscoveryClientForConfig(apiserver.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version.GitVersion, "v1.") || version.Major != "1" || version.Minor == "" {
		t.Errorf("the server's version is %q (%s.%s)", version.GitVersion, version.Major, version.Minor)
	}
}
