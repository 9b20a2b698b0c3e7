package mirror

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits for clients.
const (
	// maxStatus is the maximum length of a Status as JSON, in bytes.
	maxStatus = 64 << 10
	// maxVersions is how many versions If-None-Match may have.
	maxVersions = 8
	// readWithin and writeWithin are the timeouts for bodies.
	readWithin  = 10 * time.Second
	writeWithin = time.Minute
	// retryAfter is the Retry-After if there are no files yet.
	retryAfter = time.Second
)

// get answers with a Change or with 304.
func (f *Feed) get(w http.ResponseWriter, r *http.Request) {
	versions, err := Versions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	base, wait := "", wait(r.Header)
	if len(versions) > 0 {
		base = versions[0]
	}
	if f.knows(base) && f.Acked != nil {
		f.Acked(base)
	}
	until := time.NewTimer(wait)
	defer until.Stop()
	for {
		change, ok, changed := f.since(base, versions)
		if ok {
			f.send(w, change)
			return
		}
		if _, version, ok := f.Current(); ok && f.Unwanted != nil && version != base {
			f.Unwanted(version)
		}
		if wait == 0 || !awaited(r, changed, until.C) {
			break
		}
		if _, version, _ := f.Current(); version == base && base != "" {
			// The Feed is back at the version in use, which the next request confirms.
			break
		}
	}
	if r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if _, version, ok := f.Current(); !ok {
		unavailable(w)
	} else {
		w.Header().Set("ETag", quoted(version))
		w.WriteHeader(http.StatusNotModified)
	}
}

// head answers with the current version. The request does not acknowledge a version.
func (f *Feed) head(w http.ResponseWriter, r *http.Request) {
	versions, err := Versions(r)
	_, version, ok := f.Current()
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case !ok:
		unavailable(w)
	default:
		w.Header().Set("Content-Type", ChangeType)
		w.Header().Set("ETag", quoted(version))
		if slices.Contains(versions, version) {
			w.WriteHeader(http.StatusNotModified)
		}
	}
}

// unavailable answers that there are no files yet.
func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	http.Error(w, "there are no files yet; retry in a moment", http.StatusServiceUnavailable)
}

// send answers with the Change.
func (f *Feed) send(w http.ResponseWriter, change Change) {
	header := w.Header()
	header.Set("Content-Type", ChangeType)
	header.Set("ETag", quoted(change.Version))
	// The server around the Feed may have no write timeout.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	counted := &counter{w: w}
	if writeChange(counted, change) == nil && f.Sent != nil {
		f.Sent(change.Version, len(change.Files)+len(change.Gone), counted.bytes)
	}
}

// counter counts the bytes written to it.
type counter struct {
	w     io.Writer
	bytes int
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.bytes += n
	return n, err
}

// post receives a Status.
func (f *Feed) post(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != StatusType {
		http.Error(w, "the content type must be "+StatusType, http.StatusUnsupportedMediaType)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readWithin))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxStatus))
	if err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), code)
		return
	}
	var status Status
	if err := json.Unmarshal(body, &status); err != nil || status.Version == "" {
		http.Error(w, "the body is not a status with a version", http.StatusBadRequest)
		return
	}
	if f.Rejected != nil && f.knows(status.Version) {
		status.Error = shortened(status.Error)
		f.Rejected(status)
	}
	w.WriteHeader(http.StatusNoContent)
}

// Versions returns the versions in a request's If-None-Match: the first is in use, and the
// others are not wanted. It returns an error if they are not entity tags, or too many.
func Versions(r *http.Request) ([]string, error) {
	var versions []string
	for _, line := range r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' || strings.Contains(tag[1:len(tag)-1], `"`) {
				return nil, errors.New("If-None-Match is not a list of versions in quotes")
			}
			if versions = append(versions, tag[1:len(tag)-1]); len(versions) > maxVersions {
				return nil, fmt.Errorf("If-None-Match has more than %d versions", maxVersions)
			}
		}
	}
	return versions, nil
}

// wait returns how long the client prefers to wait, at most MaxWait.
func wait(header http.Header) time.Duration {
	for _, line := range header.Values("Prefer") {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			// Only the first preference with a name counts (RFC 7240, section 2).
			seconds, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if err != nil {
				return 0
			}
			return min(time.Duration(seconds)*time.Second, MaxWait)
		}
	}
	return 0
}

func quoted(version string) string { return `"` + version + `"` }

// maxError bounds the error of a Status, in bytes.
const maxError = 8 << 10

// shortened returns the end of a long message, where programs usually give the reason, as
// valid UTF-8.
func shortened(message string) string {
	if len(message) > maxError {
		message = "..." + message[len(message)-maxError:]
	}
	return strings.ToValidUTF8(message, "")
}

func compareFiles(a, b *File) int { return strings.Compare(a.Name, b.Name) }
