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

// Limits of what a client may take.
const (
	// longestStatus is how long a Status may be, as JSON.
	longestStatus = 64 << 10
	// mostVersions is how many versions If-None-Match may name.
	mostVersions = 8
	// readWithin and writeWithin are how long a body may take.
	readWithin  = 10 * time.Second
	writeWithin = time.Minute
	// retryAfter is when to ask again if there is nothing yet.
	retryAfter = time.Second
)

// get answers with a Change, or that there is none.
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
		if wait == 0 || !awaited(r, changed, until.C) {
			break
		}
		if _, version, _ := f.Current(); version == base && base != "" {
			// It is in use again, which the next request says.
			break
		}
	}
	if r.Context().Err() != nil {
		w.Header().Set("Connection", "close")
	}
	if _, version, ok := f.Current(); !ok {
		unknown(w)
	} else {
		w.Header().Set("ETag", quoted(version))
		w.WriteHeader(http.StatusNotModified)
	}
}

// head answers with the current version. To ask for it says nothing of one in use.
func (f *Feed) head(w http.ResponseWriter, r *http.Request) {
	versions, err := Versions(r)
	_, version, ok := f.Current()
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case !ok:
		unknown(w)
	default:
		w.Header().Set("Content-Type", ChangeType)
		w.Header().Set("ETag", quoted(version))
		if slices.Contains(versions, version) {
			w.WriteHeader(http.StatusNotModified)
		}
	}
}

// unknown answers that there is nothing yet.
func unknown(w http.ResponseWriter) {
	w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	http.Error(w, "nothing is known yet; ask again in a moment", http.StatusServiceUnavailable)
}

// send answers with the Change.
func (f *Feed) send(w http.ResponseWriter, change Change) {
	header := w.Header()
	header.Set("Content-Type", ChangeType)
	header.Set("ETag", quoted(change.Version))
	// A server that has no deadlines writes for as long as the client lets it.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	counted := &counter{w: w}
	if writeChange(counted, change) == nil && f.Sent != nil {
		f.Sent(change.Version, len(change.Files)+len(change.Gone), counted.bytes)
	}
}

// counter counts what is written.
type counter struct {
	w     io.Writer
	bytes int
}

// Write is for io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.bytes += n
	return n, err
}

// post takes a Status.
func (f *Feed) post(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != StatusType {
		http.Error(w, "only "+StatusType+" is taken", http.StatusUnsupportedMediaType)
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readWithin))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestStatus))
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

// Versions returns the versions in a request's If-None-Match: the first is in use, and
// the others are known and not wanted. It returns an error if they are not entity tags, or too
// many.
func Versions(r *http.Request) ([]string, error) {
	var versions []string
	for _, line := range r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' || strings.Contains(tag[1:len(tag)-1], `"`) {
				return nil, errors.New("If-None-Match is not a list of versions in quotes")
			}
			if versions = append(versions, tag[1:len(tag)-1]); len(versions) > mostVersions {
				return nil, fmt.Errorf("If-None-Match holds more than %d versions", mostVersions)
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
			// Only the first one of a name counts (RFC 7240, section 2).
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

// longestError is how much of an error is told, in bytes.
const longestError = 8 << 10

// shortened returns the end of a long message, which is where programs say why, as
// valid UTF-8.
func shortened(message string) string {
	if len(message) > longestError {
		message = "..." + message[len(message)-longestError:]
	}
	return strings.ToValidUTF8(message, "")
}

func compareFiles(a, b *File) int { return strings.Compare(a.Name, b.Name) }
