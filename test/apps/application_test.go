package apps

import (
	"fmt"
	"slices"
	"strings"
)

// application is a server and what its clients do.
type application struct {
	// name is that of its pods and services.
	name string
	// program is what the page calls it.
	program string
	// few says that 'go test' without arguments runs it too.
	few bool
	// file is the server's program in the image. Without it the application is skipped.
	file string
	// replicas is the number of pods, named NAME-0 and so on; 0 means 1.
	replicas int
	// root says that the server must start as root.
	root bool
	// ports are those of the service. The first one tells whether the server is ready.
	ports []port
	// advice is for users: what to set, and what does not work.
	advice string
	// checks are commands of a client.
	checks []check
	// session is a shell command of a client with a long connection. It prints "kept" if the
	// connection lasted until the file $STOP existed, and "ended" otherwise. "every TEXT" prints a line every
	// 200 ms until that file exists; "same" prints "kept" if all lines are the same.
	session string
	// lacks are the pairs, such as "envoy to pipy", with which the session does something else, and
	// why.
	lacks map[string]string
}

// port is a port of a service, or the ports from number to last.
type port struct {
	number      int
	appProtocol string
	last        int
}

// check is a shell command of a client. HOST is the server's name.
type check struct {
	name, command string
	// want is what it prints, without white space at the ends.
	want string
	// lacks are the classes with which it prints something else, on either side, and why.
	lacks map[string]string
}

// applications is the table. The servers' scripts are testdata/NAME.sh.
var applications = slices.Concat(web, databases, others)

// manifest returns the pods and the service in a namespace. A service of pods without
// sidecars is headless, since the lab has no other implementation of service addresses.
func (a application) manifest(namespace string) string {
	var out strings.Builder
	user := 1000
	if a.root {
		user = 0
	}
	for n := range max(a.replicas, 1) {
		fmt.Fprintf(&out, `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]d, namespace: %[3]s, labels: {app: %[1]s}}
spec:
  serviceAccountName: %[1]s
  hostname: %[1]s-%[2]d
  subdomain: %[1]s
  terminationGracePeriodSeconds: 10
  securityContext: {runAsUser: %[4]d, runAsGroup: %[4]d}
  containers:
  - name: server
    image: debian
    command: [sh, /apps/%[1]s.sh]
    env: [{name: HOME, value: /tmp}, {name: NAMESPACE, value: %[3]s}, {name: PATH, value: "/usr/sbin:/usr/bin:/sbin:/bin"}]
    readinessProbe: {tcpSocket: {port: %[5]d}, periodSeconds: 1}
`, a.name, n, namespace, user, a.ports[0].number)
	}
	headless := ""
	if namespace == plain || a.replicas > 1 {
		// Members find each other before they are ready.
		headless = "  clusterIP: None\n  publishNotReadyAddresses: true\n"
	}
	fmt.Fprintf(&out, `---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s}
spec:
%[3]s  selector: {app: %[1]s}
  ports:
`, a.name, namespace, headless)
	for _, p := range a.ports {
		for number := p.number; number <= max(p.number, p.last); number++ {
			fmt.Fprintf(&out, "  - {name: port-%[1]d, port: %[1]d, appProtocol: %[2]s}\n", number, p.appProtocol)
		}
	}
	return out.String()
}
