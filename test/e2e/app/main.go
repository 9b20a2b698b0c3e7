// Command app is the program in the pods of the end-to-end tests: a server for every protocol
// that a kubelet can probe, and clients that log their results as lines of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const usage = `usage: app COMMAND [flags]

Commands:
  serve      serve HTTP on 8080, HTTPS on 8443, gRPC's health service on 9000 and TCP on 7000
  load       make requests until it is told to stop, and say once a second how they went
  lifecycle  make a request at once, and another some time after it is told to stop
  once       make one request, and fail if that does
`

func main() {
	// Handle the signal from the start: it may come at any time.
	stopped, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := run(stopped, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func run(stopped context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errors.New("give a command")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	url := flags.String("url", "", "what is asked for")
	begin := flags.Duration("begin-after", 0, "how long a server takes to start")
	end := flags.Duration("end-after", 5*time.Second, "how long a server goes on, or a client waits, after it is told to stop")
	every := flags.Duration("every", 50*time.Millisecond, "pause between two requests of each worker")
	workers := flags.Int("workers", 2, "requests at a time")
	pin := flags.String("pin", "", "SHA-256, in hex, of the certificate that the server must present")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *pin != "" {
		http.DefaultTransport.(*http.Transport).TLSClientConfig = pinned(*pin)
	}
	switch args[0] {
	case "serve":
		return serve(stopped, *begin, *end)
	case "load":
		load(stopped, *url, *every, *workers)
		return nil
	case "lifecycle":
		say(get(context.Background(), *url))
		<-stopped.Done()
		time.Sleep(*end)
		say(get(context.Background(), *url))
		return nil
	case "once":
		result := get(stopped, *url)
		say(result)
		if result.Status != 200 {
			return errors.New("the request failed")
		}
		return nil
	}
	fmt.Fprint(os.Stderr, usage)
	return fmt.Errorf("unknown command %q", args[0])
}

// line is a client's log line. A line about one request has a status or an error, a line
// about many has their number.
type line struct {
	Time     time.Time `json:"time"`
	Status   int       `json:"status,omitempty"`
	Error    string    `json:"error,omitempty"`
	Requests int       `json:"requests,omitempty"`
	Failures int       `json:"failures,omitempty"`
}

var stdout sync.Mutex

func say(l line) {
	stdout.Lock()
	defer stdout.Unlock()
	l.Time = time.Now().UTC()
	// Continue although nobody reads the output.
	_ = json.NewEncoder(os.Stdout).Encode(l)
}
