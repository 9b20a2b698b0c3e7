package apps

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"
)

const addition = `
apiVersion: v1
kind: Service
metadata: {name: addition, namespace: %[1]s}
spec: {clusterIP: None, selector: {app: client}, ports: [{name: http, port: 80}]}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: addition, namespace: %[1]s}
spec:
  host: addition.%[1]s.svc.cluster.local
  connectionSettings: {tcp: {connectTimeout: 3s}}
---
`

// change changes the configuration of all sidecars, and waits until the certificate of a
// server in each class has been renewed. It returns what went wrong.
func (w *town) change(t *testing.T) string {
	before := map[string]string{}
	for _, class := range w.namespaces() {
		if class != plain {
			before[class] = w.serial(t, class)
		}
	}
	manifest := ""
	for class := range before {
		manifest += fmt.Sprintf(addition, class)
	}
	w.apply(t, "addition.yaml", manifest)
	w.apply(t, "mesh.yaml", config("none"))
	deadline := time.Now().Add(2 * validity)
	for class, serial := range before {
		for now := serial; now == serial || now == ""; now = w.serial(t, class) {
			if time.Now().After(deadline) {
				return fmt.Sprintf("the certificate of %s/client was not renewed in %s", class, 2*validity)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	if err := w.Delete(t.Context(), "addition.yaml"); err != nil {
		return err.Error()
	}
	w.apply(t, "mesh.yaml", config("all"))
	return ""
}

// serial returns the serial number of the certificate of a class's client pod, which is a
// server like any other, or "".
func (w *town) serial(t *testing.T, class string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	address := net.JoinHostPort(w.Pod(class + "/client").Addresses()[0].String(), "80")
	conn, err := w.Lab().Node().Dial(ctx, "tcp", address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	serial := ""
	session := tls.Client(conn, &tls.Config{
		ServerName: "default." + class + ".sa.cluster.local", InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			serial = state.PeerCertificates[0].SerialNumber.String()
			return nil
		},
	})
	// It fails without a certificate of the client's, after the server has shown its own.
	_ = session.HandshakeContext(ctx)
	return serial
}
