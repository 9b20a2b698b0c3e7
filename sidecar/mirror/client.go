package mirror

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxChange is the maximum length of a Change as JSON, in bytes.
const MaxChange = 64 << 20

// DefaultWait is how long a Client waits for a change in one request.
const DefaultWait = time.Minute

// ProxyHeader is a header of requests. It has the version of the program that uses the files.
const ProxyHeader = "Outrigger-Proxy-Version"

// extraWait is how much longer than the requested wait a request may take.
const extraWait = 30 * time.Second

// Client polls a server for its files. It is safe for use by many goroutines; its fields
// must be set before it is used.
type Client struct {
	// URL is the server's URL.
	URL string
	// HTTP makes the requests. Its Timeout must not be shorter than Wait. Nil means
	// http.DefaultClient.
	HTTP *http.Client
	// Wait is how long the server should wait for a change: 0 means DefaultWait, the
	// maximum is MaxWait, and a negative value means not to wait.
	Wait time.Duration

	// Proxy returns the version of the program that uses the files, for ProxyHeader; empty if
	// it is unknown. Nil means that it is never known.
	Proxy func() string

	// maxChange replaces MaxChange in tests.
	maxChange int64
}

// Poll asks the server once. The version have is in use, empty if there is none; the
// others are known and not wanted, of which at most the first seven are sent. Poll returns
// the Change, to be applied to the files of version have, or to no files if its Base is
// empty; or nil if there is no other version yet.
//
// The error is an *Error if the server's status is neither 200 nor 304.
func (c *Client) Poll(ctx context.Context, have string, others ...string) (*Change, error) {
	wait := cmp.Or(c.Wait, DefaultWait)
	wait = min(max(wait, 0), MaxWait)
	ctx, cancel := context.WithTimeout(ctx, wait+extraWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", ChangeType)
	if c.Proxy != nil {
		if version := c.Proxy(); version != "" {
			request.Header.Set(ProxyHeader, version)
		}
	}
	if tags := tags(have, others); tags != "" {
		request.Header.Set("If-None-Match", tags)
	}
	if wait > 0 {
		request.Header.Set("Prefer", "wait="+strconv.Itoa(int(wait.Seconds())))
	}
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNotModified:
		return nil, nil
	case http.StatusOK:
	default:
		return nil, errorOf(response)
	}
	limit := cmp.Or(c.maxChange, MaxChange)
	if response.ContentLength > limit {
		return nil, tooLong(c.URL)
	}
	body := &io.LimitedReader{R: response.Body, N: limit + 1}
	change, err := readChange(body)
	if err != nil {
		if body.N == 0 {
			return nil, tooLong(c.URL)
		}
		return nil, fmt.Errorf("%s sent an invalid change: %w", c.URL, err)
	}
	// The connection is reused only if the body was read to its end.
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 4<<10))
	return change, nil
}

// tags returns the value of If-None-Match. Its first version is the one in use: without
// files, but with unwanted versions, that is the version of the empty Set.
func tags(have string, others []string) string {
	if have == "" {
		if len(others) == 0 {
			return ""
		}
		have = Version(Set{})
	}
	tags := []string{quoted(have)}
	for _, version := range others[:min(len(others), maxVersions-1)] {
		tags = append(tags, quoted(version))
	}
	return strings.Join(tags, ", ")
}

func tooLong(url string) error {
	return fmt.Errorf("%s sent a change of more than %d MiB, which is refused", url, MaxChange>>20)
}

// Report reports to the server that a version can't be used. Of a long error only the end
// is sent.
func (c *Client) Report(ctx context.Context, status Status) error {
	status.Error = shortened(status.Error)
	body, err := json.Marshal(status)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, extraWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", StatusType)
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return errorOf(response)
	}
	return nil
}

// Error is an HTTP answer with an unexpected status.
type Error struct {
	// Code is the HTTP status: 503 if the server has no files yet.
	Code int
	// Message is the beginning of the body, as one line.
	Message string
	// RetryAfter is how long to wait before the next request; 0 if the server does not
	// say.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("the server answers %d: %s", e.Code, e.Message), ": ")
}

// maxMessage is how many bytes of a body become the Message of an Error.
const maxMessage = 512

func errorOf(response *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	e := &Error{Code: response.StatusCode, Message: strings.Join(strings.Fields(strings.ToValidUTF8(string(body), "")), " ")}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}
