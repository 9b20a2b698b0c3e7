package cli

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// withClass gives a pod of folderMesh another class of sidecars.
func withClass(manifests, pod, class string) string {
	name := "metadata: {name: " + pod + ", "
	return strings.Replace(manifests, name, name+"annotations: {openservicemesh.io/sidecar-class: "+class+"}, ", 1)
}

// mirror requests the files of a pod from the repository, as its agent does. An error means
// that TLS has failed.
func (c *peer) mirror(t *testing.T, port, uid string, change func(*tls.Config)) (int, mirror.Change, error) {
	t.Helper()
	config := c.tls(t)
	if change != nil {
		change(config)
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.host+":"+port+"/repo/"+uid+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", mirror.ChangeType)
	response, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return 0, mirror.Change{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var files mirror.Change
	if response.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, &files); err != nil {
			t.Fatal(err)
		}
	}
	return response.StatusCode, files, nil
}

// TestControllerServesRepository checks that a pod that selects Pipy gets its files from port
// 6060, in a mesh whose default is Envoy.
func TestControllerServesRepository(t *testing.T) {
	t.Parallel()
	f := startFolder(t, withClass(folderMesh, "cart", "pipy"))
	cart := f.peer(t, "shop/cart", "cart", nil)
	cart.sign(t)
	var files mirror.Change
	eventually(t, "files of the cart", func() error {
		code, found, err := cart.mirror(t, "6060", cart.uid, nil)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("it answers %d", code)
		}
		files = found
		return err
	})
	if set, err := files.Apply(mirror.Set{}); err != nil || set.Len() == 0 {
		t.Errorf("%d files came: %v", set.Len(), err)
	}

	// Other servers are not accepted as the repository, and other clients are refused.
	desk := f.peer(t, "shop/desk", "desk", nil)
	desk.sign(t)
	if code, _, err := desk.mirror(t, "6060", cart.uid, nil); err == nil && code == http.StatusOK {
		t.Error("another pod gets the cart's files")
	}
	if code, _, err := cart.mirror(t, "6060", cart.uid, func(c *tls.Config) { c.Certificates = nil }); err == nil {
		t.Errorf("without a certificate it answers %d", code)
	}
	var unknown x509.UnknownAuthorityError
	if code, _, err := cart.mirror(t, "6060", cart.uid, func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }); !errors.As(err, &unknown) {
		t.Errorf("without a root the repository is verified: %d, %v", code, err)
	}
	eventually(t, "the debug page of the repository", func() error {
		text, err := get("http://" + f.host + ":9092/debug/repo?proxy=" + cart.uid)
		if err == nil && !strings.Contains(text, files.Files[0].Name) {
			err = fmt.Errorf("it does not name %s: %s", files.Files[0].Name, text)
		}
		return err
	})

	// After a restart the repository still accepts the agent's certificate.
	f.stop()
	f.start(t)
	eventually(t, "files after a restart", func() error {
		code, _, err := cart.mirror(t, "6060", cart.uid, nil)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("it answers %d", code)
		}
		return err
	})
}

// TestControllerProxyPorts sets the ports of two classes in the MeshConfig.
func TestControllerProxyPorts(t *testing.T) {
	t.Parallel()
	manifests := strings.Replace(withClass(folderMesh, "cart", "pipy"), "maxDataPlaneConnections: 2",
		"sidecarDrivers: [{sidecarName: pipy, proxyServerPort: 15128}, {sidecarName: envoy, proxyServerPort: 6060}]", 1)
	f := startFolder(t, manifests)
	cart, desk := f.peer(t, "shop/cart", "cart", nil), f.peer(t, "shop/desk", "desk", nil)
	cart.sign(t)
	desk.sign(t)
	eventually(t, "files of the cart on the other port", func() error {
		code, _, err := cart.mirror(t, "15128", cart.uid, nil)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("it answers %d", code)
		}
		return err
	})
	stream := desk.connectTo(t, "6060")
	defer stream.close()
	stream.ask(t, listenerType)
}
