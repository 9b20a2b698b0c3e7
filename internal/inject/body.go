package inject

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

// Bounds are those of the webhook's server, which takes whoever reaches it for an API
// server. An API server has one connection or a few, and a new one for each review where
// it speaks HTTP/1.1.
var Bounds = limit.Bounds{
	Connections: 1024, Each: 512,
	Request: 10 * time.Second, Answer: 30 * time.Second, Idle: 2 * time.Minute,
	Body: maxBody + 1,
}

const (
	// maxBody bounds a review. An API server's own limit for a request is 3 MiB, and
	// a review repeats the object at most twice.
	maxBody = 8 << 20
	// bytesInFlight is how much all reviews together may take that have not been
	// answered, in bytes, and firstBytes what each takes from the beginning.
	bytesInFlight = 32 << 20
	firstBytes    = 16 << 10
)

var (
	errTooLarge = errors.New("the review is too large")
	errNoRoom   = errors.New("too many reviews are under way; ask again")
)

// bodies keeps buffers of bodies that were answered. One huge review must not keep its
// memory for good.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

const largestKept = 64 << 10

// intake takes the bodies of reviews into memory, within bytesInFlight. Where that is
// not enough, whoever sends most at a time makes room for the others.
type intake struct{ share *limit.Share[netip.Addr] }

func newIntake() *intake {
	return &intake{limit.NewShare[netip.Addr](bytesInFlight, bytesInFlight)}
}

// read reads the body of a request, which counts until the function is called. The
// error is errTooLarge, errNoRoom or that of the connection.
func (in *intake) read(w http.ResponseWriter, r *http.Request) (content []byte, done func(), err error) {
	control := http.NewResponseController(w)
	// decided is set by whichever is first: the end of the body, or that others need the
	// room. A review that has arrived is answered. It is held while the reading is ended,
	// or that could come after the answer and end the connection's next request.
	var decided struct {
		sync.Mutex
		is bool
	}
	place, ok := in.share.Take(limit.Address(r.RemoteAddr), firstBytes, func() {
		decided.Lock()
		defer decided.Unlock()
		if !decided.is {
			decided.is = true
			_ = control.SetReadDeadline(time.Now())
		}
	})
	if !ok {
		return nil, nil, errNoRoom
	}
	buffer := bodies.Get().(*[]byte)
	done = func() {
		place.Give()
		if cap(*buffer) <= largestKept {
			bodies.Put(buffer)
		}
	}
	*buffer, err = readInto((*buffer)[:0], r.Body, place)
	decided.Lock()
	if decided.is {
		err = errNoRoom
	}
	decided.is = true
	decided.Unlock()
	if err != nil {
		done()
		return nil, nil, err
	}
	return *buffer, done, nil
}

// readInto reads to the end, and allocates nothing that the place has no room for.
func readInto(b []byte, from io.Reader, place *limit.Place[netip.Addr]) ([]byte, error) {
	room := firstBytes
	for {
		if size := cap(b); len(b) == size || size > room {
			if len(b) == size {
				size = min(max(2*size, firstBytes), maxBody+1)
			}
			if size > room && !place.More(size-room) {
				return b, errNoRoom
			}
			room = max(room, size)
			b = slices.Grow(b, size-len(b))
		}
		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b) > maxBody:
			return b, errTooLarge
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return b, err
		}
	}
}
