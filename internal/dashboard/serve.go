package dashboard

import (
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
)

// dist are the files that 'npm run build' in the folder web makes.
//
//go:embed web/dist
var dist embed.FS

// files is the root of the embedded files.
func files() fs.FS {
	root, err := fs.Sub(dist, "web/dist")
	if err != nil {
		panic(err) // The name is valid.
	}
	return root
}

func page() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		http.ServeFileFS(w, r, files(), "index.html")
	})
}

// assets serves files whose names contain a hash of their content.
func assets() http.Handler {
	server := http.FileServerFS(files())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := fs.Stat(files(), r.URL.Path[1:]); err != nil || r.URL.Path[len(r.URL.Path)-1] == '/' {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		server.ServeHTTP(w, r)
	})
}

// answer answers with a value as JSON.
func answer(get func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		value, err := get(r)
		var text []byte
		if err == nil {
			text, err = json.Marshal(value)
		}
		switch {
		case errors.Is(err, errUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadGateway)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text)
		}
	})
}

// policy lets the page load nothing but its own files and its own data, and no other page
// embed it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guarded refuses requests that do not come from the page, or not from someone who knows the
// key.
func guarded(o Options, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		opens := o.Key != "" && r.URL.Path == "/" && same(r.URL.Query().Get("key"), o.Key)
		switch site := r.Header.Get("Sec-Fetch-Site"); {
		case len(o.Hosts) > 0 && !slices.Contains(o.Hosts, r.Host):
			http.Error(w, "this server is not called "+r.Host, http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the dashboard only reads", http.StatusMethodNotAllowed)
		case site != "" && site != "same-origin" && site != "none" && !opens:
			http.Error(w, "requests of other sites are refused", http.StatusForbidden)
		case opens:
			http.SetCookie(w, &http.Cookie{Name: cookieName(o.Key), Value: o.Key, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "./", http.StatusSeeOther)
		case o.Key != "" && !knows(r, o.Key):
			http.Error(w, "open the address that the command printed, which contains a key", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// cookieName differs between dashboards, because browsers send cookies to all ports of a
// host.
func cookieName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "outrigger-dashboard-" + hex.EncodeToString(sum[:4])
}

func knows(r *http.Request, key string) bool {
	cookie, err := r.Cookie(cookieName(key))
	return err == nil && same(cookie.Value, key)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
