package cni

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// requestTimeout bounds a request to the API server.
	requestTimeout = 5 * time.Second
	// maxAnswer bounds an answer of the API server, in bytes.
	maxAnswer = 4 << 20
)

// leave removes the plug-in from the node if the DaemonSet is gone. During an upgrade or a
// restart of the node the DaemonSet exists, and the plug-in stays for new pods.
func (n *node) leave() error {
	if n.daemonSet == "" {
		return nil
	}
	namespace, name, _ := strings.Cut(n.daemonSet, "/")
	api, err := newAPI(n.accountDir, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	if err != nil {
		return fmt.Errorf("the plug-in stays on the node: the API server cannot be asked for the DaemonSet: %w", err)
	}
	for began := time.Now(); ; time.Sleep(n.every) {
		gone, err := api.gone(namespace, name)
		switch {
		case err == nil && gone:
			return n.remove()
		case err == nil:
			n.log.Info("the plug-in stays on the node: the DaemonSet still exists", "daemonSet", n.daemonSet)
			return nil
		case time.Since(began) > n.leaveTime:
			return fmt.Errorf("the plug-in stays on the node: it is unknown whether the DaemonSet %s still exists: %w", n.daemonSet, err)
		}
	}
}

// api is a minimal client of the API server.
type api struct {
	url    string
	token  string
	client *http.Client
}

func newAPI(dir, host, port string) (*api, error) {
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s/ca.crt holds no certificate", dir)
	}
	return &api{
		url: "https://" + net.JoinHostPort(host, port), token: strings.TrimSpace(string(token)),
		client: &http.Client{Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
	}, nil
}

// gone reports whether the DaemonSet is deleted or being deleted. So does an authorization
// error: uninstalling the chart deletes the RBAC objects before the pods.
func (a *api) gone(namespace, name string) (bool, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
		a.url+"/apis/apps/v1/namespaces/"+namespace+"/daemonsets/"+name, nil)
	if err != nil {
		return false, err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Accept", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusForbidden, http.StatusUnauthorized:
		return true, nil
	case http.StatusOK:
	default:
		return false, fmt.Errorf("the API server answers %s", response.Status)
	}
	var daemonSet struct {
		Metadata struct {
			DeletionTimestamp string `json:"deletionTimestamp"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&daemonSet); err != nil {
		return false, fmt.Errorf("reading the DaemonSet: %w", err)
	}
	return daemonSet.Metadata.DeletionTimestamp != "", nil
}
