package main

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

const (
	nodeName     = "node"
	podRange     = "10.244.0.0/16"
	serviceRange = "10.96.0.0/16"
	// The first address of serviceRange is the API server's.
	apiServerIP = "10.96.0.1"
	dnsIP       = "10.96.0.10"
	pauseImage  = "docker.io/outrigger-test/pause:1"
	dnsImage    = "docker.io/outrigger-test/coredns:1"
)

// templates are the configuration files of the programs, with settings as their data.
//
//go:embed config
var templates embed.FS

// settings are the data of the configuration files.
type settings struct {
	Dir, Node, Cgroup, PodRange, DNS, PauseImage, DNSImage string
}

// writeConfig writes the programs' keys and certificates, kubeconfigs and configuration
// files.
func (c *cluster) writeConfig() error {
	for _, dir := range []string{"config/cni", "log", "pids", "pki"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	_, node := c.network()
	ca, err := newAuthority(c.path("pki"))
	if err != nil {
		return err
	}
	if err := ca.issue("apiserver", newTemplate("kube-apiserver", nil, node.String(), "127.0.0.1", apiServerIP, "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")); err != nil {
		return err
	}
	if err := ca.issue("service-account", newTemplate("service accounts", nil)); err != nil {
		return err
	}
	for _, user := range []struct {
		file, name string
		groups     []string
		kubeconfig string
	}{
		{"admin", "admin", []string{"system:masters"}, c.kubeconfig()},
		{"kubelet", "system:node:" + nodeName, []string{"system:nodes"}, c.path("config", "kubelet.kubeconfig")},
		{"kube-proxy", "system:kube-proxy", nil, c.path("config", "kube-proxy.kubeconfig")},
		{"controller-manager", "system:kube-controller-manager", nil, c.path("config", "controller-manager.kubeconfig")},
		{"scheduler", "system:kube-scheduler", nil, c.path("config", "scheduler.kubeconfig")},
	} {
		if err := ca.issue(user.file, newTemplate(user.name, user.groups)); err != nil {
			return err
		}
		// Without quotes, YAML would read a name such as y or 123 as another type.
		text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: %[1]q, cluster: {server: "https://%[2]s:6443", certificate-authority: "%[3]s/ca.crt"}}]
users: [{name: %[4]q, user: {client-certificate: "%[3]s/%[4]s.crt", client-key: "%[3]s/%[4]s.key"}}]
contexts: [{name: %[1]q, context: {cluster: %[1]q, user: %[4]q}}]
current-context: %[1]q
`, c.name, node, c.path("pki"), user.file)
		if err := os.WriteFile(user.kubeconfig, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return c.writeTemplates(settings{
		Dir: c.dir, Node: node.String(), Cgroup: c.cgroup(), PodRange: podRange, DNS: dnsIP, PauseImage: pauseImage, DNSImage: dnsImage,
	})
}

func (c *cluster) writeTemplates(s settings) error {
	parsed, err := template.ParseFS(templates, "config/*")
	if err != nil {
		return err
	}
	for _, t := range parsed.Templates() {
		name := t.Name()
		if filepath.Ext(name) == ".conflist" {
			name = filepath.Join("cni", name)
		}
		file, err := os.Create(c.path("config", name))
		if err != nil {
			return err
		}
		if err := t.Execute(file, s); err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}
