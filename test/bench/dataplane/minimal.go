package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// handWrittenFiles are the hand-written configurations: what an administrator would write for
// one client and one server with HTTP and mTLS, and nothing else.
//
//go:embed minimal
var handWrittenFiles embed.FS

// minimal is a hand-written proxy.
type minimal struct {
	// Listen is its port, and Next and NextPort are where it forwards requests to.
	Listen   int
	Next     string
	NextPort int
	// AcceptTLS says that its clients use TLS and have a certificate of the mesh.
	AcceptTLS bool
	// TwoFrontends says that the connections are accepted by one frontend and the requests
	// handled by another one, behind a Unix socket.
	TwoFrontends bool
	// ServerName is the name in the certificate of the server, or empty for plaintext.
	ServerName string
}

// minimalData is for the templates.
type minimalData struct {
	minimal
	Identity, Run  string
	Ready, Threads int
}

// spec replaces the proxy of a sidecar by the hand-written one. Everything else stays: the
// container, its user, the certificates, and the agent, which does nothing for requests.
func (m *minimal) spec(class string, threads int, s *agentspec.Spec) error {
	name := map[string]string{"envoy": "envoy.yaml", "haproxy": "haproxy.cfg", "pipy": "pipy.js"}[class]
	text, err := handWrittenFiles.ReadFile("minimal/" + name)
	if name == "" || err != nil {
		return fmt.Errorf("there is no hand-written configuration for the class %q", class)
	}
	parsed, err := template.New(name).Parse(string(text))
	if err != nil {
		return err
	}
	var config strings.Builder
	if err := parsed.Execute(&config, minimalData{*m, driver.IdentityDir, driver.RunDir, driver.AdminPort, threads}); err != nil {
		return err
	}
	file := path.Join(driver.RunDir, "minimal-"+name)
	files := []agentspec.File{{Path: file, Content: config.String()}}
	n := strconv.Itoa(threads)
	command := map[string][]string{
		"envoy":   {"envoy", "--config-path", file, "--concurrency", n, "--log-level", "error", "--disable-hot-restart"},
		"haproxy": {"haproxy", "-db", "-f", file},
		"pipy":    {"pipy", "--threads=" + n, "--reuse-port", "--no-graph", "--log-level=error", file},
	}[class]
	// Pipy's settings of OpenSSL are a file.
	if class == "pipy" {
		files = append(files, s.Files...)
	}
	*s = agentspec.Spec{
		Command: command, Env: s.Env, Files: files, ReadyURL: fmt.Sprintf("http://127.0.0.1:%d/ready", driver.AdminPort), Probes: s.Probes,
	}
	return nil
}

// changeSpec changes what the agent of an injected pod is told.
func changeSpec(pod *corev1.Pod, change func(*agentspec.Spec) error) error {
	return changeEnv(pod, "outrigger-proxy", agentspec.EnvSpec, change)
}

// disableRedirection makes the init container copy the agent and write no rules, as in pods
// that are injected without redirection.
func disableRedirection(pod *corev1.Pod) error {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == "outrigger-init" {
			c.Command = []string{"/outrigger-agent", "copy"}
			return nil
		}
	}
	return fmt.Errorf("pod %s has no container outrigger-init", pod.Name)
}

// changeEnv changes an environment variable with JSON.
func changeEnv[T any](pod *corev1.Pod, container, name string, change func(*T) error) error {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for n := range containers[i].Env {
				env := &containers[i].Env[n]
				if containers[i].Name != container || env.Name != name {
					continue
				}
				value := new(T)
				if err := json.Unmarshal([]byte(env.Value), value); err != nil {
					return fmt.Errorf("pod %s: %s: %w", pod.Name, name, err)
				}
				if err := change(value); err != nil {
					return fmt.Errorf("pod %s: %w", pod.Name, err)
				}
				var err error
				env.Value, err = agentspec.EnvValue(value)
				return err
			}
		}
	}
	return fmt.Errorf("pod %s has no container %s with a variable %s", pod.Name, container, name)
}
