package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Question asks for the outcome of a request or a connection.
type Question struct {
	// From is a pod or a service account.
	From mesh.Name
	To   Target
	// Request has a Host only if one was given; the default is that of the Target. It has
	// no Method for a connection.
	Request mesh.Request
}

// Target is the destination: a service or pod by Name, or an address, or a host name.
type Target struct {
	Name mesh.Name
	Addr netip.Addr
	Host string
	// Port is a number or, for a service or pod, the name of a port. If empty, Explain
	// chooses one.
	Port string
}

// String returns the target in the syntax of NewQuestion.
func (t Target) String() string {
	target := t.Host
	switch {
	case t.Name != mesh.Name{}:
		target = t.Name.String()
	case t.Addr.Is6() && t.Port != "":
		target = "[" + t.Addr.String() + "]"
	case t.Addr.IsValid():
		target = t.Addr.String()
	}
	if t.Port != "" {
		target += ":" + t.Port
	}
	return target
}

// NewQuestion parses a question. From is NAMESPACE/NAME of a pod or a service account. To
// is NAMESPACE/NAME[:PORT] of a service or a pod, or HOST[:PORT] or ADDRESS[:PORT]. The
// path begins with a slash and may have a query. Headers are name=value. Without method
// and path the question is about a connection. All errors are about the user's input.
func NewQuestion(from, to, method, path string, headers []string) (Question, error) {
	q := Question{Request: mesh.Request{Method: strings.ToUpper(method), Path: path, Headers: make(map[string][]string)}}
	var err error
	if q.From, err = parseName(from); err != nil {
		return Question{}, fmt.Errorf("FROM %q: %w", from, err)
	}
	if q.To, err = parseTarget(to); err != nil {
		return Question{}, fmt.Errorf("TO %q: %w", to, err)
	}
	if method == "" && path == "" {
		if len(headers) > 0 {
			return Question{}, errors.New("headers require a request; add its METHOD and PATH")
		}
		return q, nil
	}
	if method == "" || strings.ContainsAny(method, " /") {
		return Question{}, fmt.Errorf("METHOD %q: write one such as GET", method)
	}
	if !strings.HasPrefix(path, "/") {
		return Question{}, fmt.Errorf("PATH %q: it must begin with a slash", path)
	}
	for _, header := range headers {
		name, value, ok := strings.Cut(header, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if !ok || name == "" {
			return Question{}, fmt.Errorf("header %q: write it as name=value", header)
		}
		if name == "host" {
			q.Request.Host = value
			continue
		}
		q.Request.Headers[name] = append(q.Request.Headers[name], value)
	}
	return q, nil
}

func parseName(text string) (mesh.Name, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return mesh.Name{}, fmt.Errorf("write it as NAMESPACE/NAME")
	}
	return mesh.Name{Namespace: namespace, Name: name}, nil
}

func parseTarget(text string) (Target, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return Target{Addr: addr.Unmap()}, nil
	}
	if at, err := netip.ParseAddrPort(text); err == nil && at.Port() != 0 {
		return Target{Addr: at.Addr().Unmap(), Port: strconv.Itoa(int(at.Port()))}, nil
	}
	if u, err := url.Parse(text); err == nil && u.Scheme != "" && u.Host != "" {
		port := cmp.Or(u.Port(), map[string]string{"https": "443"}[u.Scheme], "80")
		return Target{}, fmt.Errorf("it is a URL; write it as %s, and the rest as PATH", net.JoinHostPort(u.Hostname(), port))
	}
	host, port, hasPort := strings.Cut(text, ":")
	if hasPort && !validPort(port) {
		return Target{}, fmt.Errorf("%q is not a port", port)
	}
	if strings.Contains(host, "/") {
		name, err := parseName(host)
		return Target{Name: name, Port: port}, err
	}
	if host == "" {
		return Target{}, fmt.Errorf("write it as NAMESPACE/NAME, HOST or ADDRESS, optionally with :PORT")
	}
	if number, err := strconv.Atoi(port); port != "" && (err != nil || number == 0) {
		return Target{}, fmt.Errorf("the port of a host must be a number")
	}
	return Target{Host: strings.ToLower(host), Port: port}, nil
}

// validPort accepts a number or a name.
func validPort(port string) bool {
	if number, err := strconv.Atoi(port); err == nil {
		return number > 0 && number < 1<<16
	}
	return port != "" && !strings.ContainsAny(port, ":/ ")
}

// number returns the port's number, or otherwise if it has none.
func (t Target) number(otherwise uint16) uint16 {
	if number, err := strconv.ParseUint(t.Port, 10, 16); err == nil {
		return uint16(number)
	}
	return otherwise
}
