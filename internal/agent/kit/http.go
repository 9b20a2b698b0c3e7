package kit

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// client is for requests to the proxy, over loopback.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Request sends a request and returns an error unless the answer is 2xx.
func Request(ctx context.Context, method, url string) error {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	return nil
}

// Reply answers a request with a line of text.
func Reply(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	if status != http.StatusNoContent && status != http.StatusNotModified {
		fmt.Fprintln(w, text)
	}
}
