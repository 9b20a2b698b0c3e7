package inject

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// Bounds are the limits of the webhook's server, which does not authenticate its clients.
// An API server opens a few connections, or one for each review if it uses HTTP/1.1.
var Bounds = limit.Bounds{
	Connections: 1024, Each: 512,
	Request: 10 * time.Second, Answer: 30 * time.Second, Idle: 2 * time.Minute,
	Body: maxBody + 1,
}

const (
	// maxBody bounds a review. An API server's own limit for a request is 3 MiB, and
	// a review repeats the object at most twice.
	maxBody = 8 << 20
	// bytesInFlight is the memory for the bodies of all unanswered reviews, and
	// firstBytes the share that each reserves at its start, in bytes.
	bytesInFlight = 32 << 20
	firstBytes    = 16 << 10
)

var (
	errTooLarge = errors.New("the review is too large")
	errBusy     = errors.New("too many reviews are in progress; try again")
)

// bodies reuses the buffers of answered reviews. Buffers above largestKept are dropped, so
// that a huge review does not hold its memory forever.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

const largestKept = 64 << 10

// intake reads the bodies of reviews within bytesInFlight. When the limit is reached, the
// client with the largest share is cut off in favour of the others.
type intake struct{ share *limit.Share[netip.Addr] }

func newIntake() *intake {
	return &intake{limit.NewShare[netip.Addr](bytesInFlight, bytesInFlight)}
}

// read reads the body of a request, which counts against the limit until done is called.
// The error is errTooLarge, errBusy or that of the connection.
func (in *intake) read(w http.ResponseWriter, r *http.Request) (content []byte, done func(), err error) {
	control := http.NewResponseController(w)
	// closed is set by the end of the body or by the eviction of this request, whichever
	// comes first: a body that has arrived completely is still answered. The lock is held
	// while the deadline is set, which otherwise could hit the connection's next request.
	var reading struct {
		sync.Mutex
		closed bool
	}
	place, ok := in.share.Take(limit.Address(r.RemoteAddr), firstBytes, func() {
		reading.Lock()
		defer reading.Unlock()
		if !reading.closed {
			reading.closed = true
			_ = control.SetReadDeadline(time.Now())
		}
	})
	if !ok {
		return nil, nil, errBusy
	}
	buffer := bodies.Get().(*[]byte)
	done = func() {
		place.Give()
		if cap(*buffer) <= largestKept {
			bodies.Put(buffer)
		}
	}
	*buffer, err = readInto((*buffer)[:0], r.Body, place)
	reading.Lock()
	if reading.closed {
		err = errBusy
	}
	reading.closed = true
	reading.Unlock()
	if err != nil {
		done()
		return nil, nil, err
	}
	return *buffer, done, nil
}

// readInto reads to the end. It reserves memory in the share before it allocates it.
func readInto(b []byte, from io.Reader, place *limit.Place[netip.Addr]) ([]byte, error) {
	reserved := firstBytes
	for {
		if size := cap(b); len(b) == size || size > reserved {
			if len(b) == size {
				size = min(max(2*size, firstBytes), maxBody+1)
			}
			if size > reserved && !place.More(size-reserved) {
				return b, errBusy
			}
			reserved = max(reserved, size)
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
