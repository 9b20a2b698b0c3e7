// Package bell wakes goroutines. It imports nothing, so that every package can use it.
package bell

// Bell wakes a goroutine. It holds one ring, so ringing it never blocks.
type Bell chan struct{}

// New returns a bell that has not rung.
func New() Bell { return make(Bell, 1) }

// Ring wakes the goroutine that receives from the bell, or the next time that it does.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}
