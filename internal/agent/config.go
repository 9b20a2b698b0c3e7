package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/agent/process"
	"github.com/outrigger-mesh/outrigger/internal/agent/rollout"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// config is read from the environment.
type config struct {
	spec       agentspec.Spec
	identity   mesh.Identity
	podUID     string
	podIP      string // the address of app probes; may be empty if no probe needs it
	controller string // host name of the signing service
	// class and workload are labels of metrics, and may be empty.
	class, workload string
	ignored         error // names a field of the Spec that this agent does not know
}

// readConfig reads the environment of the sidecar container. The error lists every
// problem.
func readConfig(env func(string) (string, bool)) (*config, error) {
	var problems []error
	need := func(name string) string {
		value, _ := env(name)
		if value == "" {
			problems = append(problems, fmt.Errorf("environment variable %s is not set; the injector sets it", name))
		}
		return value
	}
	c := &config{
		identity: mesh.Identity{
			TrustDomain:    need(agentspec.EnvTrustDomain),
			Namespace:      need(agentspec.EnvPodNamespace),
			ServiceAccount: need(agentspec.EnvServiceAccount),
		},
		podUID:     need(agentspec.EnvPodUID),
		controller: need(agentspec.EnvController),
	}
	c.podIP, _ = env(agentspec.EnvPodIP)
	c.class, _ = env(agentspec.EnvClass)
	c.workload, _ = env(agentspec.EnvWorkload)
	if text := need(agentspec.EnvSpec); text != "" {
		var err error
		if c.ignored, err = decode(text, &c.spec); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", agentspec.EnvSpec, err))
		} else if err := errors.Join(expandSpec(&c.spec, limitThreads(env, runtime.NumCPU())), c.check()); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return nil, misuse{errors.Join(problems...)}
	}
	if _, err := mesh.ParseIdentity(c.identity.String()); err != nil {
		return nil, misuse{err}
	}
	return c, nil
}

// decode reads one JSON value. An unknown field is not an error, since the injector may be
// newer than the init image, but is returned as ignored.
func decode(text string, into any) (ignored, err error) {
	read := func(strict bool) error {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		if strict {
			d.DisallowUnknownFields()
		}
		if err := d.Decode(into); err != nil {
			return err
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return errors.New("unexpected data after the JSON value")
		}
		return nil
	}
	if err := read(false); err != nil {
		return nil, err
	}
	return read(true), nil
}

// reference matches ${NAME}, where NAME is an environment variable name in Kubernetes.
var reference = regexp.MustCompile(`\$\{[-._a-zA-Z0-9]+\}`)

// expand replaces each ${NAME} by the value of the environment variable.
func expand(text string, env func(string) (string, bool)) (string, error) {
	missing := make(map[string]bool)
	text = reference.ReplaceAllStringFunc(text, func(match string) string {
		name := match[2 : len(match)-1]
		value, ok := env(name)
		if !ok {
			missing[name] = true
		}
		return value
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("it refers to %s, which the container's environment does not set", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	return text, nil
}

// limitThreads limits the number of worker threads in an environment to the number of
// processors: more do not help a proxy, and Pipy refuses to start with them.
func limitThreads(env func(string) (string, bool), processors int) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := env(name)
		if name == agentspec.EnvConcurrency {
			if n, err := strconv.Atoi(value); err == nil && n > processors {
				value = strconv.Itoa(processors)
			}
		}
		return value, ok
	}
}

// expandSpec expands the fields that package agentspec documents as expanded.
func expandSpec(spec *agentspec.Spec, env func(string) (string, bool)) error {
	var problems []error
	in := func(what string, text *string) {
		expanded, err := expand(*text, env)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %s: %w", agentspec.EnvSpec, what, err))
			return
		}
		*text = expanded
	}
	for i := range spec.Command {
		in("command", &spec.Command[i])
	}
	for i := range spec.Env {
		in("env "+spec.Env[i].Name, &spec.Env[i].Value)
	}
	for i := range spec.Files {
		in("content of file "+spec.Files[i].Path, &spec.Files[i].Content)
	}
	in("readyURL", &spec.ReadyURL)
	if spec.Drain != nil {
		in("drain.url", &spec.Drain.URL)
	}
	if spec.Upgrade != nil {
		in("upgrade.url", &spec.Upgrade.URL)
	}
	if m := spec.Mirror; m != nil {
		in("mirror.url", &m.URL)
		outer := env
		env = func(name string) (string, bool) {
			if name == "MIRROR" {
				// Each version's folder is substituted later.
				return rollout.FolderReference, true
			}
			return outer(name)
		}
		for i := range m.Check {
			in("mirror.check", &m.Check[i])
		}
	}
	if spec.Reload != nil {
		for i := range spec.Reload.Command {
			in("reload.command", &spec.Reload.Command[i])
			if spec.Mirror != nil {
				spec.Reload.Command[i] = rollout.AtFolder(spec.Reload.Command[i], spec.Mirror.Dir)
			}
		}
	}
	return errors.Join(problems...)
}

// reserved are the agent's own paths.
var reserved = []string{"/", "/ready", "/alive", "/metrics", "/mirror", "/quitquitquit"}

// check returns all problems of the Spec. It does not validate the app author's input,
// such as the URL of a probe: a bad one makes the probe fail, as it would without the
// mesh.
func (c *config) check() error {
	var problems []error
	wrong := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(agentspec.EnvSpec+": "+format, args...))
	}
	s := &c.spec
	wrongCommand := func(what string, argv []string) {
		if len(argv) > 0 && argv[0] == "" {
			wrong("%s is empty", what)
		}
		if slices.ContainsFunc(argv, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
			wrong("%s contains a zero byte", what)
		}
	}
	switch {
	case len(s.Command) == 0 && !s.ShareIdentity:
		wrong("command is empty, and the identity is not shared with the application either")
	case len(s.Command) == 0 && (s.Reload != nil || s.ReadyURL != ""):
		wrong("reload and readyURL need a command")
	}
	wrongCommand("command", s.Command)
	wrongCommand("version", s.Version)
	for _, v := range s.Env {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.ContainsRune(v.Value, 0) {
			wrong("env %q cannot be an environment variable", v.Name)
		}
	}
	written := make(map[string]bool)
	for _, f := range s.Files {
		switch {
		case !isPath(f.Path):
			wrong("file %q: the path must be absolute and without . and ..", f.Path)
		case isWithin(f.Path, agentspec.IdentityDir):
			wrong("file %q: the folder is reserved for the agent's identity files", f.Path)
		case written[f.Path]:
			wrong("file %q appears twice", f.Path)
		}
		written[f.Path] = true
	}
	if secrets := s.Secrets; secrets != nil {
		switch {
		case !isPath(secrets.Socket):
			wrong("secrets.socket %q must be absolute and without . and ..", secrets.Socket)
		case len(secrets.Socket) > socket.MaxPath:
			wrong("secrets.socket %q is longer than %d bytes, the limit for a socket's path", secrets.Socket, socket.MaxPath)
		case written[secrets.Socket]:
			wrong("secrets.socket %q is also one of the files", secrets.Socket)
		case s.Mirror != nil && isWithin(secrets.Socket, s.Mirror.Dir):
			wrong("secrets.socket %q: mirror.dir is reserved for files from the repository", secrets.Socket)
		}
	}
	if r := s.Records; r != nil {
		u, err := url.Parse(r.Metrics)
		switch {
		case err != nil || u.Scheme != "http" || !isLoopback(u.Hostname()):
			wrong("records.metrics %q is not an http URL on loopback", r.Metrics)
		case r.File != "" && (!isPath(r.File) || written[r.File]):
			wrong("records.file %q must be absolute, without . and .., and none of the files", r.File)
		}
		for _, reason := range r.Reasons {
			if reason.Text == "" || reason.Reason != "" && !telemetry.IsReason(reason.Reason) {
				wrong("records.reasons: %q can't mean %q", reason.Text, reason.Reason)
			}
		}
	}
	if d := s.OnDemand; d != nil {
		for _, address := range []string{d.Known, d.Outside} {
			if host, _, err := net.SplitHostPort(address); !isPath(address) && (err != nil || !isLoopback(host)) {
				wrong("onDemand: %q is neither the path of a socket nor an address and port on loopback", address)
			}
		}
	}
	if m := s.Mirror; m != nil {
		if u, err := url.Parse(m.URL); err != nil || u.Scheme != "https" || u.Host == "" {
			wrong("mirror.url %q is not an https URL", m.URL)
		}
		switch {
		case !isPath(m.Dir):
			wrong("mirror.dir %q must be absolute and without . and ..", m.Dir)
		case isWithin(agentspec.IdentityDir, m.Dir) || isWithin(m.Dir, agentspec.IdentityDir):
			wrong("mirror.dir %q: %s is reserved for the agent's identity files", m.Dir, agentspec.IdentityDir)
		}
		for _, f := range s.Files {
			if isWithin(f.Path, m.Dir) {
				wrong("file %q: mirror.dir is reserved for files from the repository", f.Path)
			}
		}
		switch {
		case m.Live == "":
		case strings.HasPrefix(rollout.IdentityName, m.Live):
			wrong("mirror.live %q matches the agent's own file %q", m.Live, rollout.IdentityName)
		case path.IsAbs(m.Live) || path.Clean(m.Live) != strings.TrimSuffix(m.Live, "/") || strings.HasPrefix(m.Live, "."):
			wrong("mirror.live %q is not a prefix of file names; it must be relative and without . and ..", m.Live)
		}
		wrongCommand("mirror.check", m.Check)
	}
	if r := s.Reload; r != nil {
		switch {
		case (r.Signal == "") == (len(r.Command) == 0):
			wrong("reload needs a signal or a command, but not both")
		case r.Signal != "" && process.SignalNumber(r.Signal) == 0:
			wrong("reload.signal %q is not the name of a signal, such as HUP", r.Signal)
		}
		if r.Workers && r.Signal == "" {
			wrong("reload.workers needs a signal")
		}
		wrongCommand("reload.command", r.Command)
	}
	if s.Spans != nil && (s.Mirror == nil || !filepath.IsLocal(s.Spans.Collector)) {
		wrong("spans.collector %q is not the name of a file in mirror.dir", s.Spans.Collector)
	}
	if s.ReadyURL != "" && !isHTTP(s.ReadyURL) {
		wrong("readyURL %q is not an http URL", s.ReadyURL)
	}
	if d := s.Drain; d != nil {
		if d.URL != "" && !isHTTP(d.URL) {
			wrong("drain.url %q is not an http URL", d.URL)
		}
		if d.Seconds < 0 {
			wrong("drain.seconds is %d", d.Seconds)
		}
	}
	if u := s.Upgrade; u != nil {
		switch {
		case len(s.Command) == 0:
			wrong("upgrade needs a command")
		case u.Signal != "" && process.SignalNumber(u.Signal) == 0:
			wrong("upgrade.signal %q is not the name of a signal, such as USR1", u.Signal)
		case u.URL != "" && !isHTTP(u.URL):
			wrong("upgrade.url %q is not an http URL", u.URL)
		case u.Seconds < 0:
			wrong("upgrade.seconds is %d", u.Seconds)
		}
	}
	answered := make(map[string]bool)
	for _, p := range s.Probes {
		if err := c.checkProbe(p); err != nil {
			wrong("probe %q: %w", p.Path, err)
		} else if answered[p.Path] {
			wrong("probe %q appears twice", p.Path)
		}
		answered[p.Path] = true
	}
	return errors.Join(problems...)
}

func (c *config) checkProbe(p agentspec.Probe) error {
	switch {
	case !strings.HasPrefix(p.Path, "/"):
		return errors.New("the path must begin with a slash")
	case slices.Contains(reserved, p.Path):
		return errors.New("the path is reserved for the agent")
	case p.Port < 1 || p.Port > 65535:
		return fmt.Errorf("%d is not a port", p.Port)
	case p.TimeoutSeconds < 1 && p.Hook == "":
		return fmt.Errorf("timeoutSeconds is %d but must be at least 1", p.TimeoutSeconds)
	case p.Host == "" && c.podIP == "":
		return fmt.Errorf("it targets the pod's own address, but environment variable %s is not set", agentspec.EnvPodIP)
	}
	if p.Hook != "" {
		switch {
		case p.Kind != agentspec.HTTP:
			return fmt.Errorf("a hook of the kind %q is not supported, only HTTP is", p.Kind)
		case p.Hook != agentspec.PostStart && p.Hook != agentspec.PreStop:
			return fmt.Errorf("the hook %q is not %s or %s", p.Hook, agentspec.PostStart, agentspec.PreStop)
		}
	}
	switch p.Kind {
	case agentspec.HTTP:
		if !slices.Contains([]string{"", "HTTP", "HTTPS"}, p.Scheme) {
			return fmt.Errorf("the scheme %q is not HTTP or HTTPS", p.Scheme)
		}
	case agentspec.TCP, agentspec.GRPC:
	default:
		return fmt.Errorf("the kind %q is not HTTP, TCP or GRPC", p.Kind)
	}
	return nil
}

// isPath reports whether name is an absolute, clean path other than the root.
func isPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && name != "/" && !strings.ContainsRune(name, 0)
}

// isLoopback reports whether a host is a loopback address.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return err == nil && address.IsLoopback()
}

// isWithin reports whether a path is the folder or inside it.
func isWithin(name, folder string) bool {
	return name == folder || strings.HasPrefix(name, folder+"/")
}

func isHTTP(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
