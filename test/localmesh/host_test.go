package localmesh

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
)

const names = `
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIP: 198.19.0.7
  clusterIPs: [198.19.0.7, "2001:db8:1::7"]
  ipFamilies: [IPv4, IPv6]
  selector: {app: db}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{port: 3306, appProtocol: mysql}]
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: shop}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec:
  clusterIP: None
  selector: {app: nobody}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: shop, labels: {app: db}}
spec: {hostname: db-0, subdomain: db, containers: [{name: db, image: db}]}
status: {podIP: 198.18.0.8, podIPs: [{ip: 198.18.0.8}, {ip: "2001:db8::8"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-1, namespace: shop, labels: {app: db}}
spec: {hostname: db-1, subdomain: elsewhere, containers: [{name: db, image: db}]}
status: {podIP: 198.18.0.9}
---
apiVersion: v1
kind: Pod
metadata: {name: db-2, namespace: other, labels: {app: db}}
spec: {hostname: db-2, subdomain: db, containers: [{name: db, image: db}]}
`

func TestHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "names.yaml")
	if err := os.WriteFile(file, []byte(names), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster, problems, err := dir.ReadCluster([]string{file}, dir.Options{Mapper: source.MapperOptions{MeshName: "osm", SidecarClass: inject.ClassOf}})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	got := make(map[string]string)
	for name, addresses := range hostsOf(cluster) {
		got[name] = join(addresses)
	}
	want := make(map[string]string)
	for name, addresses := range map[string]string{
		"cart.shop":    "198.19.0.7 2001:db8:1::7",
		"db.shop":      "198.18.0.8 2001:db8::8 198.18.0.9",
		"db-0.db.shop": "198.18.0.8 2001:db8::8",
	} {
		want[name], want[name+".svc"], want[name+".svc.cluster.local"] = addresses, addresses, addresses
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func join(addresses []netip.Addr) string {
	var texts []string
	for _, addr := range addresses {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, " ")
}
