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
	// askTime is how long the API server may take to answer.
	askTime = 5 * time.Second
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 4 << 20
)

// leave takes the plug-in off the node if the DaemonSet is gone. In an upgrade, and when a
// node restarts, it is there, and pods go on starting with the plug-in as it is.
func (n *node) leave() error {
	if n.daemonSet == "" {
		return nil
	}
	namespace, name, _ := strings.Cut(n.daemonSet, "/")
	api, err := newAPI(n.accountDir, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	if err != nil {
		return fmt.Errorf("the plug-in stays on the node, since nobody can be asked whether it is still wanted: %w", err)
	}
	for began := time.Now(); ; time.Sleep(n.every) {
		gone, err := api.gone(namespace, name)
		switch {
		case err == nil && gone:
			return n.remove()
		case err == nil:
			n.log.Info("the plug-in stays on the node, for the DaemonSet is still there", "daemonSet", n.daemonSet)
			return nil
		case time.Since(began) > n.leaveTime:
			return fmt.Errorf("the plug-in stays on the node, since the API server does not say whether the DaemonSet %s is still there: %w", n.daemonSet, err)
		}
	}
}

// api is the API server, as far as it is needed.
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
		client: &http.Client{Timeout: askTime, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
	}, nil
}

// gone reports whether the DaemonSet is gone or on its way. So it is when we have lost the
// right to ask: the chart takes both away together, the right before the pods.
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
