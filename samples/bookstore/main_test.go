package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// freeAddress returns an address that is not in use.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// play runs a role until the test ends.
func play(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, args) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%v: %v", args, err)
		}
	})
}

func TestStoreRestocks(t *testing.T) {
	stockAt, warehouseAt, storeAt, reviewsAt := freeAddress(t), freeAddress(t), freeAddress(t), freeAddress(t)
	play(t, "--listen", stockAt, "stock")
	play(t, "--listen", warehouseAt, "--upstream", stockAt, "bookwarehouse")
	play(t, "--listen", storeAt, "--listen-reviews", reviewsAt, "--version", "v1", "--upstream", "http://"+warehouseAt, "bookstore")
	var last map[string]any
	for range 10 {
		last = nil
		body := get(t, "http://"+storeAt+"/buy-a-book")
		if err := json.Unmarshal([]byte(body), &last); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
	}
	if last["sold"] != 10.0 || last["store"] != "v1" || last["restock"] != nil {
		t.Errorf("the tenth sale answers %v", last)
	}
	if _, err := net.Dial("tcp", reviewsAt); err != nil {
		t.Errorf("reviews: %v", err)
	}
}

func TestBuyerWritesWhatItBought(t *testing.T) {
	storeAt, reviewsAt := freeAddress(t), freeAddress(t)
	play(t, "--listen", storeAt, "--listen-reviews", reviewsAt, "--version", "v2", "bookstore")
	get(t, "http://"+storeAt+"/books")

	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := buyer(ctx, &settings{out: writer, every: time.Millisecond, upstream: "http://" + storeAt})
		writer.Close()
		ended <- err
	}()
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"path":"/buy-a-book","status":200,"store":"v2",`; !strings.HasPrefix(line, want) {
		t.Errorf("the first line is %s, want it to begin with %s", line, want)
	}
	cancel()
	reader.Close()
	<-ended
}

func TestUnknownRole(t *testing.T) {
	for _, args := range [][]string{{}, {"librarian"}, {"bookbuyer", "bookthief"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v is taken for a role", args)
		}
	}
}

// get repeats a request until there is an answer.
func get(t *testing.T, url string) string {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		response, err := http.Get(url)
		if err == nil {
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil && response.StatusCode == 200 {
				return string(body)
			}
			t.Fatalf("%s answers %s: %s", url, response.Status, body)
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
