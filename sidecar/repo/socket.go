package repo

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

const (
	// reloadAgain is when a Pipy is told again that has not asked for the manifest: it
	// does not hear of it while it loads files.
	reloadAgain = 3 * time.Second
	// longestMessage is how long a message from it may be, of which none is read.
	longestMessage = 64 << 10
	// socketsPerProxy is how many WebSockets it may have.
	socketsPerProxy = 2
)

// reload is the command to load all files again.
const reload = "reload\n"

// socket serves a WebSocket, over which a Pipy is told when to load all files again.
func (s *session) socket(w http.ResponseWriter, r *http.Request) {
	if !s.stock.open() {
		http.Error(w, "there are too many WebSockets of this proxy", http.StatusTooManyRequests)
		return
	}
	defer s.stock.close()
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		// Accept has answered.
		return
	}
	defer socket.CloseNow()
	socket.SetReadLimit(longestMessage)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// When a context of the reader ends, so does the connection, without a word.
	reading := context.WithoutCancel(ctx)
	go func() {
		defer cancel()
		for {
			_, message, err := socket.Reader(reading)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, message); err != nil {
				return
			}
		}
	}()
	if s.command(ctx, socket) == nil {
		_ = socket.Close(websocket.StatusGoingAway, "connect again")
	}
}

// command tells the proxy to load the files whenever it has others. It returns nil when
// ctx has ended.
func (s *session) command(ctx context.Context, socket *websocket.Conn) error {
	told, last := "", time.Time{}
	s.mu.Lock()
	assumed := s.version
	s.mu.Unlock()
	for {
		changed, loads := s.stock.watch()
		s.mu.Lock()
		version := s.version
		s.mu.Unlock()
		var again <-chan time.Time
		if loads == "" {
			// What it has is not known yet, and may well be the right thing: not every
			// proxy should load all again because the controller is another one.
			loads = assumed
		}
		if loads != version {
			if told != version || time.Since(last) >= reloadAgain {
				if err := write(ctx, socket); err != nil {
					return err
				}
				told, last = version, time.Now()
			}
			again = time.After(time.Until(last.Add(reloadAgain)))
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

func write(ctx context.Context, socket *websocket.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	return socket.Write(ctx, websocket.MessageText, []byte(reload))
}

// watch returns a channel that is closed at the next change of the version, and the
// version that the proxy has.
func (s *stock) watch() (<-chan struct{}, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told == nil {
		s.told = make(chan struct{})
	}
	return s.told, s.loads
}

func (s *stock) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sockets >= socketsPerProxy {
		return false
	}
	s.sockets++
	return true
}

func (s *stock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets--
}
