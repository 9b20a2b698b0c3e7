package inject

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// slowDeadline is a ResponseWriter that sets the read deadline slowly.
type slowDeadline struct {
	http.ResponseWriter
	begun chan struct{}
	set   atomic.Bool
}

func (w *slowDeadline) SetReadDeadline(time.Time) error {
	close(w.begun)
	time.Sleep(50 * time.Millisecond)
	w.set.Store(true)
	return nil
}

// readFunc implements io.Reader for a body.
type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// TestReadingEndsBeforeTheAnswer evicts a review just as its body ends. The read deadline
// must not be set after the answer, or it would end the connection's next request.
func TestReadingEndsBeforeTheAnswer(t *testing.T) {
	in := &intake{limit.NewShare[netip.Addr](2*firstBytes, 2*firstBytes)}
	w := &slowDeadline{httptest.NewRecorder(), make(chan struct{}), atomic.Bool{}}
	taken := make(chan bool, 1)
	body := readFunc(func([]byte) (int, error) {
		go func() {
			_, ok := in.share.Take(netip.MustParseAddr("198.18.0.3"), firstBytes, func() {})
			taken <- ok
		}()
		<-w.begun
		return 0, io.EOF
	})
	// Another request from the same address, so that it has the largest share.
	if _, ok := in.share.Take(netip.MustParseAddr("198.18.0.2"), firstBytes, func() {}); !ok {
		t.Fatal("there is no memory left")
	}
	r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("{"), body))
	r.RemoteAddr = "198.18.0.2:1000"
	_, _, err := in.read(w, r)
	if !w.set.Load() {
		t.Error("the review is answered before its reading was ended")
	}
	if !errors.Is(err, errBusy) || !<-taken {
		t.Errorf("the review is read, %v, and the other gets no memory", err)
	}
}
