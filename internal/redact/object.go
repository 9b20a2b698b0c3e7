package redact

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

var (
	// shownAnnotations are annotations whose values are shown, besides those that match ourAnnotation.
	shownAnnotations = []string{
		"deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation", "helm.sh/resource-policy", "kubectl.kubernetes.io/default-container",
		"kubectl.kubernetes.io/restartedAt", "kubernetes.io/config.seen", "kubernetes.io/config.source", "meta.helm.sh/release-name", "meta.helm.sh/release-namespace",
		"cert-manager.io/inject-ca-from", "prometheus.io/path", "prometheus.io/port", "prometheus.io/scheme", "prometheus.io/scrape",
	}
	ourAnnotation = regexp.MustCompile(`^([a-z0-9.-]+\.)?(openservicemesh\.io|outrigger)/|^outrigger[a-z0-9.-]*/|^pod-security\.kubernetes\.io/`)

	// shownOfContainer are the fields that are shown of containers that are not ours.
	shownOfContainer = []string{"name", "image", "imagePullPolicy", "ports", "resources", "restartPolicy", "securityContext", "volumeMounts", "volumeDevices", "terminationMessagePolicy", "targetContainerName"}
	// shownOfVolume are the fields of volumes that only say what the volume is.
	shownOfVolume = []string{"name", "configMap", "secret", "projected", "emptyDir", "downwardAPI", "hostPath", "persistentVolumeClaim"}
	// shownOfSecret are the reference fields of objects whose name has a secret word.
	shownOfSecret = []string{"name", "namespace", "key", "path", "kind", "apiVersion", "apiGroup", "audience", "secretName", "mountPath", "port", "expirationSeconds"}
	// noSecrets are fields that hold no secret although their names have such a word.
	noSecrets = []string{
		"secretName", "inboundExternalAuthorization", "tokenReviews", "authorizationPolicy",
		// References of Envoy to where it gets certificates.
		"tls_certificate_sds_secret_configs", "validation_context_sds_secret_config",
	}
	// values are the value fields of matches and name-value pairs.
	values = regexp.MustCompile(`(?i)^(values?|exact|regex|prefix|suffix|contains|default|(string|exact|prefix|suffix|contains|safe_?regex|range)_?match|safe_?regex)$`)
	// shownProbe are probe messages of the kubelet itself, not of the application.
	shownProbe = regexp.MustCompile(`^(HTTP probe failed with statuscode: \d+|dial tcp [^\n]*|Get "[^"]*": [^\n]*|command timed out|command "[^"]*" timed out|timeout: [^\n]*|service unhealthy [^\n]*|context deadline exceeded[^\n]*)`)
	probed     = regexp.MustCompile(`^(?:Liveness|Readiness|Startup) probe (?:failed|errored)[^:]*: `)
)

// redactor is the context of a value.
type redactor struct{ ours []string }

// Object returns a copy of a Kubernetes object in JSON form without secrets. Containers whose
// names are not among ours lose their commands, arguments and values of environment variables.
func Object(object map[string]any, ours ...string) map[string]any {
	out := (&redactor{ours}).object(object)
	for _, kind := range []string{"Secret", "ConfigMap"} {
		if object["kind"] == kind {
			for _, field := range []string{"data", "stringData", "binaryData"} {
				if _, ok := out[field]; ok {
					out[field] = Mark
				}
			}
		}
	}
	if reason, _ := object["reason"].(string); object["involvedObject"] != nil || object["regarding"] != nil {
		for _, field := range []string{"message", "note"} {
			if message, ok := out[field].(string); ok {
				out[field] = event(reason, message)
			}
		}
	}
	return out
}

// Value returns a copy of any JSON without secrets.
func Value(value any) any { return (&redactor{}).value("", value) }

// event returns the message without output of the application.
func event(reason, message string) string {
	switch reason {
	case "FailedPostStartHook", "FailedPreStopHook":
		return Mark
	case "Unhealthy", "ProbeWarning":
		begin := probed.FindString(message)
		if shown := shownProbe.FindString(message[len(begin):]); begin != "" && shown != "" {
			return begin + shown
		}
		return begin + Mark
	}
	return message
}

func (r *redactor) value(key string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		return r.field(key, v)
	case []any:
		return r.list(key, v)
	case string:
		return r.text(v)
	}
	return value
}

// object returns a copy of a map, each field redacted by its name.
func (r *redactor) object(in map[string]any) map[string]any {
	out := make(map[string]any, len(in))
	named := false
	for _, field := range []string{"name", "key", "header", "header_name", "headerName"} {
		name, ok := in[field].(string)
		named = named || ok && secretWord.MatchString(name)
	}
	for key, value := range in {
		switch {
		case key == "managedFields":
		case key == "annotations":
			out[key] = r.annotations(value)
		case key == "caBundle" || key == "inline_bytes" || key == "inlineBytes":
			out[key] = bundle(value)
		case key == "containers" || key == "initContainers" || key == "ephemeralContainers":
			out[key] = each(key, value, r.container)
		case key == "containerStatuses" || key == "initContainerStatuses" || key == "ephemeralContainerStatuses":
			out[key] = each(key, value, r.status)
		case key == "volumes":
			out[key] = each(key, value, r.volume)
		case named && values.MatchString(key):
			out[key] = hidden(value)
		case secretWord.MatchString(key) && !slices.Contains(noSecrets, key):
			out[key] = hidden(value)
		default:
			out[Text(key)] = r.value(key, value)
		}
	}
	return out
}

// field redacts an object by its own name.
func (r *redactor) field(key string, in map[string]any) map[string]any {
	out := r.object(in)
	// Requests of applications are private.
	if _, pair := in["value"].(string); pair && (key == "headers" || key == "httpHeaders") {
		out["value"] = Mark
	}
	return out
}

func (r *redactor) list(key string, in []any) []any {
	out := make([]any, len(in))
	secret := false
	for i, item := range in {
		text, ok := item.(string)
		switch {
		case ok && secret:
			out[i], secret = Mark, false
		default:
			out[i] = r.value(key, item)
			secret = ok && strings.HasPrefix(text, "-") && !strings.Contains(text, "=") && secretWord.MatchString(text)
		}
	}
	return out
}

// text redacts a string that may be a document.
func (r *redactor) text(text string) string {
	if begin := strings.TrimSpace(text); strings.HasPrefix(begin, "{") || strings.HasPrefix(begin, "[") {
		var document any
		if json.Unmarshal([]byte(text), &document) == nil {
			if out, err := json.Marshal(r.value("", document)); err == nil {
				return string(out)
			}
			return Mark
		}
	}
	return Text(text)
}

func (r *redactor) annotations(value any) any {
	in, ok := value.(map[string]any)
	if !ok {
		return hidden(value)
	}
	out := make(map[string]any, len(in))
	for key, value := range in {
		out[key] = Mark
		if text, ok := value.(string); ok && !secretWord.MatchString(key) && (ourAnnotation.MatchString(key) || slices.Contains(shownAnnotations, key)) {
			out[key] = r.text(text)
		}
	}
	return out
}

// container redacts a container. Of one that is not ours only harmless fields stay.
func (r *redactor) container(in map[string]any) map[string]any {
	if name, _ := in["name"].(string); slices.Contains(r.ours, name) {
		return r.object(in)
	}
	out := make(map[string]any)
	for key, value := range in {
		switch {
		case slices.Contains(shownOfContainer, key):
			// The rule for name-value pairs must not hide an image.
			out[key] = r.value(key, value)
		case key == "env" || key == "envFrom":
			out[key] = each(key, value, r.variable)
		case strings.HasSuffix(key, "Probe"):
			out[key] = r.probe(value)
		default:
			out[key] = Mark
		}
	}
	return out
}

// variable keeps the name and the references of an environment variable.
func (r *redactor) variable(in map[string]any) map[string]any {
	out := make(map[string]any)
	for key, value := range in {
		switch key {
		case "name", "prefix", "valueFrom", "configMapRef", "secretRef":
			out[key] = r.value(key, value)
		default:
			out[key] = Mark
		}
	}
	return out
}

func (r *redactor) probe(value any) any {
	in, ok := value.(map[string]any)
	if !ok {
		return Mark
	}
	out := r.object(in)
	if _, ok := in["exec"]; ok {
		out["exec"] = Mark
	}
	return out
}

// status keeps why a container ended, but not its termination message.
func (r *redactor) status(in map[string]any) map[string]any {
	out := r.object(in)
	if name, _ := in["name"].(string); slices.Contains(r.ours, name) {
		return out
	}
	for _, field := range []string{"state", "lastState"} {
		state, _ := out[field].(map[string]any)
		if ended, ok := state["terminated"].(map[string]any); ok && ended["message"] != nil {
			ended["message"] = Mark
		}
	}
	return out
}

func (r *redactor) volume(in map[string]any) map[string]any {
	out := make(map[string]any)
	for key, value := range in {
		if slices.Contains(shownOfVolume, key) {
			out[key] = r.value(key, value)
			continue
		}
		out[key] = Mark
	}
	return out
}

// each applies a function to the objects of a list, and replaces other elements by Mark.
func each(key string, value any, f func(map[string]any) map[string]any) any {
	list, ok := value.([]any)
	if !ok {
		return hidden(value)
	}
	out := make([]any, len(list))
	for i, item := range list {
		out[i] = Mark
		if name, ok := item.(string); ok && key == "volumes" {
			// The annotation of injected pods has the names only.
			out[i] = Text(name)
		}
		if object, ok := item.(map[string]any); ok {
			out[i] = f(object)
		}
	}
	return out
}

// bundle describes the certificates in a base64 text.
func bundle(value any) any {
	text, ok := value.(string)
	if !ok || text == "" {
		return hidden(value)
	}
	decoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return Mark
	}
	return Certificates(decoded)
}

// hidden keeps the shape of a secret value and the names that it refers to.
func hidden(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = hidden(value)
			if !slices.Contains(shownOfSecret, key) {
				continue
			}
			switch value := value.(type) {
			case string:
				out[key] = Text(value)
			case int64, float64:
				// A key or a name may be a number and secret.
				if key == "expirationSeconds" || key == "port" {
					out[key] = value
				}
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = hidden(v[i])
		}
		return out
	case string:
		if v == "" {
			return v
		}
		return Mark
	case bool, nil:
		return v
	}
	return Mark
}
