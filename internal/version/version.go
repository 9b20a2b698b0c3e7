// Package version reports the version of Outrigger that a program was built from.
package version

import (
	"encoding/json"
	"net/http"
	"runtime"
	"runtime/debug"
)

// Number is the semantic version of this source, without a leading v. The chart and the
// images have the same. The linker may set another, as tools/release does for -version.
var Number = "0.2.0"

// initDigest is the digest of the init container's image, sha256:.... The linker sets it in
// releases.
var initDigest string

// InitImage returns the init container's image of this version. Releases name it by digest.
func InitImage() string {
	const name = "docker.io/outriggermesh/outrigger-init"
	if initDigest != "" {
		return name + "@" + initDigest
	}
	return name + ":" + Number
}

// Info describes a build.
type Info struct {
	// Version is Number.
	Version string `json:"version"`
	// Commit is the revision of the source, with the suffix -dirty if files had been
	// changed; "" if it was built outside of a repository.
	Commit string `json:"commit,omitempty"`
	// Date is the time of the commit, as in RFC 3339.
	Date string `json:"date,omitempty"`
	// Go is the version of the compiler, such as go1.26.0.
	Go string `json:"go"`
	// Platform is the operating system and the architecture, such as linux/amd64.
	Platform string `json:"platform"`
}

// Get returns the Info of the program that calls it.
func Get() Info {
	info := Info{Version: Number, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	settings := make(map[string]string)
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	info.Commit, info.Date = settings["vcs.revision"], settings["vcs.time"]
	if settings["vcs.modified"] == "true" {
		info.Commit += "-dirty"
	}
	return info
}

// String returns the version and, in parentheses, the commit, compiler and platform.
func (i Info) String() string {
	from := i.Go + ", " + i.Platform
	if i.Commit != "" {
		from = "commit " + i.Commit + ", " + from
	}
	return i.Version + " (" + from + ")"
}

// Handler answers every request with the program's Info in JSON.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// This fails only if the client is gone.
		_ = json.NewEncoder(w).Encode(Get())
	})
}
