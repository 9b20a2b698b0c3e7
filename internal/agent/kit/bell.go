package kit

// Bell wakes a goroutine. It holds one ring, so ringing it never blocks.
type Bell chan struct{}

// NewBell returns a bell that has not rung.
func NewBell() Bell { return make(Bell, 1) }

// Ring wakes the goroutine that receives from the bell, or the next time that it does.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// IsClosed reports whether c, on which nothing is ever sent, is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
