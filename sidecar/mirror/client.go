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

// MaxChange is how long a Change may be as JSON, in bytes.
const MaxChange = 64 << 20

// DefaultWait is how long a Client waits for a change in one request.
const DefaultWait = time.Minute

// patience is how much longer than it was asked to a server may take to begin to
// answer, and how long an answer may take that was not asked to wait.
const patience = 30 * time.Second

// Client asks a server for its files. It is safe for use by many goroutines; its fields
// are set before it is used.
type Client struct {
	// URL is where the server is asked.
	URL string
	// HTTP makes the requests. It must not have a Timeout that is shorter than Wait.
	// Nil means http.DefaultClient.
	HTTP *http.Client
	// Wait is how long the server is asked to wait for a change; 0 means DefaultWait,
	// and what is longer than MaxWait counts as that. Less than 0 means not to wait.
	Wait time.Duration

	// most is MaxChange, but for tests.
	most int64
}

// Poll asks once. It says that the version have is in use, empty if there is none, and
// that the others are known and not wanted, of which at most the first seven count. It
// returns the Change, which the caller applies to the files of version have, or to none
// if its Base is empty; or nil if there is no other version yet.
//
// The error is an *Error if the server has answered with another code than 200 and 304.
func (c *Client) Poll(ctx context.Context, have string, others ...string) (*Change, error) {
	wait := cmp.Or(c.Wait, DefaultWait)
	wait = min(max(wait, 0), MaxWait)
	ctx, cancel := context.WithTimeout(ctx, wait+patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", ChangeType)
	if tags := tags(have, others); tags != "" {
		request.Header.Set("If-None-Match", tags)
	}
	if wait > 0 {
		request.Header.Set("Prefer", "wait="+strconv.Itoa(int(wait.Seconds())))
	}
	response, err := c.http().Do(request)
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
	most := cmp.Or(c.most, MaxChange)
	if response.ContentLength > most {
		return nil, tooLong(c.URL)
	}
	body := &io.LimitedReader{R: response.Body, N: most + 1}
	change, err := readChange(body)
	if err != nil {
		if body.N == 0 {
			return nil, tooLong(c.URL)
		}
		return nil, fmt.Errorf("%s answers with what is no change: %w", c.URL, err)
	}
	// What is left must be read for the connection to be used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 4<<10))
	return change, nil
}

// tags returns the value of If-None-Match. Its first version is the one in use: who has
// no files but knows some has the version of no files.
func tags(have string, others []string) string {
	if have == "" {
		if len(others) == 0 {
			return ""
		}
		have = Version(Set{})
	}
	tags := []string{quoted(have)}
	for _, version := range others[:min(len(others), mostVersions-1)] {
		tags = append(tags, quoted(version))
	}
	return strings.Join(tags, ", ")
}

func tooLong(url string) error {
	return fmt.Errorf("%s answers with a change of more than %d MiB, which is not taken", url, MaxChange>>20)
}

// Report tells the server that a version can't be used. Of a long error only the end is
// told.
func (c *Client) Report(ctx context.Context, status Status) error {
	status.Error = shortened(status.Error)
	body, err := json.Marshal(status)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", StatusType)
	response, err := c.http().Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return errorOf(response)
	}
	return nil
}

func (c *Client) http() *http.Client {
	if c.HTTP != nil {
		return c.HTTP
	}
	return http.DefaultClient
}

// Error is an answer that is neither a Change nor that there is none.
type Error struct {
	// Code is that of HTTP: 503 if there is nothing yet.
	Code int
	// Message is the beginning of the body, one line.
	Message string
	// RetryAfter is when the server wants to be asked again; 0 if it does not say.
	RetryAfter time.Duration
}

// Error is for error.
func (e *Error) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("the server answers %d: %s", e.Code, e.Message), ": ")
}

// longestMessage is how much of an answer is made the message of an Error.
const longestMessage = 512

func errorOf(response *http.Response) *Error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, longestMessage))
	e := &Error{Code: response.StatusCode, Message: strings.Join(strings.Fields(strings.ToValidUTF8(string(body), "")), " ")}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}
