package agent

// bell wakes a goroutine. It holds one ring, so ringing it never blocks.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// isClosed reports whether c, on which nothing is ever sent, is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
