package kit

// IsClosed reports whether c, on which nothing is ever sent, is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
