package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// environment returns a container's environment as "NAME=value", as a kubelet builds it,
// without the variables of services.
func (p *Pod) environment(container *corev1.Container) ([]string, error) {
	values := make(map[string]string)
	var order []string
	put := func(name, value string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = value
	}
	put("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	put("HOME", "/")
	put("HOSTNAME", p.hostname())
	for _, from := range container.EnvFrom {
		data, err := p.envFrom(from)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(data)) {
			put(from.Prefix+name, data[name])
		}
	}
	for _, variable := range container.Env {
		value, ok, err := p.envValue(container, variable, values)
		if err != nil {
			return nil, fmt.Errorf("its variable %s: %w", variable.Name, err)
		}
		if ok {
			put(variable.Name, value)
		}
	}
	var env []string
	for _, name := range order {
		env = append(env, name+"="+values[name])
	}
	return env, nil
}

func (p *Pod) envFrom(from corev1.EnvFromSource) (map[string]string, error) {
	if ref := from.SecretRef; ref != nil {
		data, ok := p.secret(ref.Name)
		if !ok && (ref.Optional == nil || !*ref.Optional) {
			return nil, fmt.Errorf("its envFrom: there is no Secret %s", ref.Name)
		}
		return data, nil
	}
	if from.ConfigMapRef == nil {
		return nil, errors.New("its envFrom: the lab supports only ConfigMaps and Secrets")
	}
	data, ok := p.configMap(from.ConfigMapRef.Name)
	if !ok && (from.ConfigMapRef.Optional == nil || !*from.ConfigMapRef.Optional) {
		return nil, fmt.Errorf("its envFrom: there is no ConfigMap %s", from.ConfigMapRef.Name)
	}
	return data, nil
}

// envValue returns the value of a variable, or false for an optional one without a value.
func (p *Pod) envValue(container *corev1.Container, variable corev1.EnvVar, values map[string]string) (string, bool, error) {
	switch from := variable.ValueFrom; {
	case from == nil:
		return expand(variable.Value, values), true, nil
	case from.FieldRef != nil:
		value, err := p.field(from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil && from.ResourceFieldRef.Resource == "limits.cpu" && from.ResourceFieldRef.Divisor.Value() == 1:
		// Like the kubelet: rounded up, and the node's CPUs without a limit.
		if named := p.specOf(from.ResourceFieldRef.ContainerName); named != nil {
			container = named
		}
		limit := container.Resources.Limits.Cpu()
		if limit.IsZero() {
			return strconv.Itoa(runtime.NumCPU()), true, nil
		}
		return strconv.FormatInt(limit.Value(), 10), true, nil
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		data, _ := p.configMap(ref.Name)
		value, ok := data[ref.Key]
		if !ok && (ref.Optional == nil || !*ref.Optional) {
			return "", false, fmt.Errorf("there is no ConfigMap %s with a key %s", ref.Name, ref.Key)
		}
		return value, ok, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		data, _ := p.secret(ref.Name)
		value, ok := data[ref.Key]
		if !ok && (ref.Optional == nil || !*ref.Optional) {
			return "", false, fmt.Errorf("there is no Secret %s with a key %s", ref.Name, ref.Key)
		}
		return value, ok, nil
	}
	return "", false, errors.New("the lab supports only values, fields, CPU limits, ConfigMaps and Secrets")
}

// specOf returns the container with the name, or nil.
func (p *Pod) specOf(name string) *corev1.Container {
	for _, containers := range [][]corev1.Container{p.object.Spec.InitContainers, p.object.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == name {
				return &containers[i]
			}
		}
	}
	return nil
}

// field returns the value of a field of the downward API.
func (p *Pod) field(name string) (string, error) {
	pod := p.object
	if in, key, ok := strings.Cut(strings.TrimSuffix(name, "']"), "['"); ok {
		switch in {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch name {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return keyValues(pod.Labels), nil
	case "metadata.annotations":
		return keyValues(pod.Annotations), nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "status.podIP":
		return p.addresses[0].String(), nil
	case "status.podIPs":
		return joinAddresses(p.addresses), nil
	case "status.hostIP":
		return p.lab.links.nodes[0].Addr().String(), nil
	case "status.hostIPs":
		var nodes []netip.Addr
		for _, prefix := range p.lab.links.nodes {
			nodes = append(nodes, prefix.Addr())
		}
		return joinAddresses(nodes), nil
	}
	return "", fmt.Errorf("the lab does not know the field %s", name)
}

func joinAddresses(addresses []netip.Addr) string {
	var texts []string
	for _, addr := range addresses {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, ",")
}

// keyValues formats labels as a kubelet does.
func keyValues(of map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(of)) {
		_, _ = fmt.Fprintf(&b, "%s=%q\n", key, of[key])
	}
	return b.String()
}

// expand replaces $(NAME) by the variable's value if it is set, and $$ by a dollar sign.
func expand(text string, values map[string]string) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(text, "$")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		value, known := values[name]
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "(") && closed && known:
			b.WriteString(value)
			text = rest
		case strings.HasPrefix(after, "(") && closed:
			b.WriteString("$(" + name + ")")
			text = rest
		default:
			b.WriteByte('$')
			text = after
		}
	}
}

// expandAll expands each text with the variables of an environment.
func expandAll(texts, env []string) []string {
	values := make(map[string]string)
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	var expanded []string
	for _, text := range texts {
		expanded = append(expanded, expand(text, values))
	}
	return expanded
}

// lookupEnv returns a variable of an environment.
func lookupEnv(env []string, name string) string {
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// hostname returns the pod's host name.
func (p *Pod) hostname() string {
	if p.object.Spec.Hostname != "" {
		return p.object.Spec.Hostname
	}
	// The kubelet truncates it to Linux's limit.
	return strings.TrimRight(p.object.Name[:min(len(p.object.Name), 63)], "-.")
}

// hostsFile returns the content of /etc/hosts with names, such as a pod's own and those of the
// lab.
func hostsFile(tables ...map[string][]netip.Addr) []byte {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	for _, names := range tables {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			for _, addr := range names[name] {
				_, _ = fmt.Fprintf(&b, "%s\t%s\n", addr.Unmap(), name)
			}
		}
	}
	return []byte(b.String())
}

// secret returns a Secret of the pod's namespace.
func (p *Pod) secret(name string) (map[string]string, bool) {
	if p.lab.options.Secret == nil {
		return nil, false
	}
	return p.lab.options.Secret(p.object.Namespace, name)
}

// configMap returns a ConfigMap of the pod's namespace.
func (p *Pod) configMap(name string) (map[string]string, bool) {
	if p.lab.options.ConfigMap == nil {
		return nil, false
	}
	return p.lab.options.ConfigMap(p.object.Namespace, name)
}
