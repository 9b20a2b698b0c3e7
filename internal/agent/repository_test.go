package agent

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// repositoryServer is a controller that serves files to one pod.
type repositoryServer struct {
	t       testing.TB
	address string
	// root signs its certificate; host is the certificate's name.
	root    *authority
	host    string
	clients *authority
	feed    mirror.Feed

	mu sync.Mutex
	// program is the version of the proxy in the last request.
	program  string
	acked    []string
	statuses []mirror.Status
	asked    int
	peers    []*x509.Certificate
	server   *http.Server
}

// mirrored gives a pod a repository, not serving yet, and a mirror of it in "files". The
// names of live files begin with "live/".
func mirrored(p *pod) *repositoryServer {
	p.t.Helper()
	r := &repositoryServer{t: p.t, address: p.ip + ":6060", root: p.ca, host: controllerHost, clients: p.ca}
	p.spec.Mirror = &agentspec.Mirror{URL: "https://" + r.address + "/repo/" + podUID + "/", Dir: p.path("files"), Live: "live/"}
	p.spec.Reload = &agentspec.Reload{Signal: "HUP"}
	r.feed.Acked = func(version string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.acked = append(r.acked, version)
	}
	r.feed.Rejected = func(status mirror.Status) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.statuses = append(r.statuses, status)
	}
	p.t.Cleanup(r.stop)
	return r
}

// serve starts the repository.
func (r *repositoryServer) serve() {
	r.t.Helper()
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(r.clients.cert)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != "/repo/"+podUID+"/" {
				http.NotFound(w, q)
				return
			}
			r.mu.Lock()
			r.asked++
			r.peers = append(r.peers, q.TLS.PeerCertificates[0])
			r.mu.Unlock()
			r.mu.Lock()
			r.program = q.Header.Get(mirror.ProxyHeader)
			r.mu.Unlock()
			r.feed.ServeHTTP(w, q)
		}),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{r.root.server(r.t, r.host)}, MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		},
	}
	r.mu.Lock()
	r.server = server
	r.mu.Unlock()
	go server.ServeTLS(listener, "", "")
}

func (r *repositoryServer) stop() {
	r.mu.Lock()
	server := r.server
	r.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// set serves files, given as alternating names and texts, and returns the version.
func (r *repositoryServer) set(namesAndTexts ...string) string {
	r.t.Helper()
	var files []*mirror.File
	for pair := range slices.Chunk(namesAndTexts, 2) {
		file, err := mirror.NewFile(pair[0], pair[1])
		if err != nil {
			r.t.Fatal(err)
		}
		files = append(files, file)
	}
	set := mirror.NewSet(files...)
	r.feed.Set(set)
	return mirror.Version(set)
}

// isAcked reports whether the version is the latest that the pod reported as in use.
func (r *repositoryServer) isAcked(version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.acked) > 0 && r.acked[len(r.acked)-1] == version
}

// refused returns the received Statuses.
func (r *repositoryServer) refused() []mirror.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.statuses)
}

// requests returns the number of requests.
func (r *repositoryServer) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// proxyVersion returns the version of the proxy that the last request has named.
func (r *repositoryServer) proxyVersion() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.program
}
