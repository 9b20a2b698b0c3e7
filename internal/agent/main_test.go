package agent

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/rollout"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// The test binary is also the agent and the proxy of the tests, each a process of its
// own as in a pod.
const (
	asAgent = "as-agent"
	asProxy = "as-proxy"
	asApp   = "as-app"
	// asClient requests a URL and prints the status.
	asClient = "as-client"
	// asDialer connects to a socket and prints what it reads.
	asDialer = "as-dialer"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case asAgent:
			p := &program{stdout: os.Stdout, stderr: os.Stderr, env: os.LookupEnv, timings: testTimings}
			os.Exit(p.main(os.Args[2:]))
		case asProxy:
			os.Exit(proxyMain(os.Args[2:]))
		case asClient:
			response, err := http.Get(os.Args[2])
			if err != nil {
				fmt.Print(err)
				os.Exit(1)
			}
			fmt.Print(response.StatusCode)
			os.Exit(0)
		case asDialer:
			fmt.Print(dialerMain(os.Args[2]))
			os.Exit(0)
		case asApp:
			time.Sleep(time.Hour)
		}
	}
	os.Exit(m.Run())
}

// testTimings are the timings of agents in tests.
var testTimings = kit.Timings{
	Poll:         20 * time.Millisecond,
	Sign:         2 * time.Second,
	Retry:        kit.Backoff{First: 20 * time.Millisecond, Most: 200 * time.Millisecond},
	RetryUrgent:  100 * time.Millisecond,
	Reuse:        time.Millisecond,
	Restart:      kit.Backoff{First: 20 * time.Millisecond, Most: 200 * time.Millisecond},
	Stable:       time.Second,
	Hopeless:     500 * time.Millisecond,
	Admin:        time.Second,
	Reload:       4 * time.Second,
	ReloadRetry:  kit.Backoff{First: 20 * time.Millisecond, Most: 200 * time.Millisecond},
	Worker:       500 * time.Millisecond,
	Report:       20 * time.Millisecond,
	Repeat:       200 * time.Millisecond,
	Stop:         500 * time.Millisecond,
	Watch:        20 * time.Millisecond,
	Settle:       2 * time.Second,
	EarlyRenewal: 200 * time.Millisecond,
	Hint:         kit.Backoff{First: 200 * time.Millisecond, Most: 400 * time.Millisecond},
	Wait:         10 * time.Second,
	Follow:       kit.Backoff{First: 20 * time.Millisecond, Most: 200 * time.Millisecond},
	Ack:          time.Second,
	Probation:    time.Second,
	Check:        2 * time.Second,
	Quarantine:   kit.Backoff{First: 200 * time.Millisecond, Most: time.Second},
	Store:        50 * time.Millisecond,
	Spans:        50 * time.Millisecond,
	Collect:      time.Second,
	Succession:   2 * time.Second,
	Steady:       100 * time.Millisecond,
	Accepted:     200 * time.Millisecond,
}

// proxyMain is a proxy that records events in a journal and serves /ready, /drain, /crash,
// /version, and /slow until it is drained.
func proxyMain(args []string) int {
	flags := flag.NewFlagSet(asProxy, flag.ExitOnError)
	admin := flags.String("admin", "", "address")
	journal := flags.String("journal", "", "file")
	gate := flags.String("gate", "", "file that must be there to be ready")
	crash := flags.Bool("crash", false, "end at once")
	stubborn := flags.Bool("stubborn", false, "do not end on SIGTERM")
	endOnDrain := flags.Bool("end-on-drain", false, "end when asked to drain")
	orphan := flags.Bool("orphan", false, "leave processes behind")
	follow := flags.String("follow", "", "URL where live files are followed")
	code := flags.String("code", "", "file that is read at the start and on SIGHUP; one that says crash ends the proxy")
	also := flags.String("also", "", "another address")
	shared := flags.Bool("shared", false, "share the port with other processes")
	version := flags.String("version", "", "version, which makes requests to drain noted with it")
	socket := flags.String("socket", "", "Unix socket that is replaced")
	_ = flags.Parse(args)

	note := func(format string, a ...any) {
		f, err := os.OpenFile(*journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			panic(err)
		}
		defer f.Close()
		fmt.Fprintf(f, format+"\n", a...)
	}
	if *crash {
		note("crash")
		return 7
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
	if *orphan {
		// The shell exits at once and leaves two orphans, of which one exits.
		out, err := exec.Command("/bin/sh", "-c", "sh -c 'exit 0' >/dev/null 2>&1 & sleep 60 >/dev/null 2>&1 & echo $!").Output()
		note("orphan %s %v", strings.TrimSpace(string(out)), err)
	}
	ended := make(chan int, 1)
	drained := make(chan struct{})
	var drainOnce sync.Once
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(*gate); *gate != "" && err != nil {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/drain", func(w http.ResponseWriter, r *http.Request) {
		note("drain %s%s", r.Method, *version)
		drainOnce.Do(func() { close(drained) })
		if *endOnDrain {
			ended <- 0
		}
	})
	mux.HandleFunc("/crash", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		note("crash")
		ended <- code
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, *version) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) {
		<-drained
		time.Sleep(time.Second)
		_, _ = io.WriteString(w, *version)
	})
	if *socket != "" {
		_ = os.Remove(*socket)
		listener, err := net.Listen("unix", *socket)
		if err != nil {
			note("%v", err)
			return 1
		}
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, *version)
				conn.Close()
			}
		}()
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if *shared {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
	}}
	config.SetMultipathTCP(false)
	addresses := []string{*admin}
	if *also != "" {
		addresses = append(addresses, *also)
	}
	for _, address := range addresses {
		go func() {
			listener, err := config.Listen(context.Background(), "tcp", address)
			if err == nil {
				err = http.Serve(listener, mux)
			}
			if err != nil {
				note("%v", err)
				ended <- 1
			}
		}()
	}
	note("start %d", os.Getpid())
	if *code != "" && strings.Contains(readCode(*code, note), "crash") {
		return 9
	}
	var follower liveFollower
	if *follow != "" {
		follower.start(*follow, note)
	}
	for {
		select {
		case code := <-ended:
			return code
		case s := <-signals:
			note("%s", unix.SignalName(s.(unix.Signal)))
			if s == unix.SIGHUP && *code != "" {
				if strings.Contains(readCode(*code, note), "late") {
					// The process before the reload continues for a while.
					<-follower.refused
				}
				text := readCode(*code, note)
				if strings.Contains(text, "crash") {
					return 9
				}
				if spared := *journal + ".spared"; strings.Contains(text, "killed once") {
					if _, err := os.Stat(spared); err != nil {
						_ = os.WriteFile(spared, nil, 0o644)
						_ = unix.Kill(os.Getpid(), unix.SIGKILL)
					}
				}
				follower.stop()
				follower = liveFollower{tolerant: strings.Contains(text, "tolerant"), fussy: strings.Contains(text, "fussy")}
				follower.start(*follow, note)
			}
			if s == unix.SIGTERM && !*stubborn {
				return 0
			}
		}
	}
}

func readCode(name string, note func(string, ...any)) string {
	text, err := os.ReadFile(name)
	note("code %s %v", strings.TrimSpace(string(text)), err)
	return string(text)
}

// liveFollower follows live files as a proxy does. It cannot use files that contain "bad"
// unless it is tolerant.
type liveFollower struct {
	tolerant bool
	// fussy rejects everything.
	fussy bool
	stop  func()
	// refused receives a value after each refusal.
	refused chan struct{}
}

func (f *liveFollower) start(url string, note func(string, ...any)) {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop, f.refused = cancel, make(chan struct{}, 1)
	client := mirror.Client{URL: url}
	go func(f liveFollower) {
		var (
			set  mirror.Set
			have string
			bad  []string
		)
		for ctx.Err() == nil {
			change, err := client.Poll(ctx, have, bad...)
			if err != nil {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			if change == nil {
				continue
			}
			next, err := change.Apply(set)
			if err != nil {
				note("follow %v", err)
				return
			}
			var words []string
			for _, name := range next.Names() {
				if file, _ := next.Get(name); name != rollout.IdentityName {
					words = append(words, name+"="+strings.TrimSpace(file.Text))
				}
			}
			text := strings.Join(words, ",")
			if f.fussy || strings.Contains(text, "bad") && !f.tolerant {
				note("refuse %s", text)
				bad = append(bad, change.Version)
				if err := client.Report(ctx, mirror.Status{Version: change.Version, Error: "it says " + text}); err != nil {
					note("follow %v", err)
				}
				f.refused <- struct{}{}
				continue
			}
			note("live %s", text)
			set, have = next, change.Version
		}
	}(*f)
}
