package driver

// ConcurrencyChecker is implemented by drivers whose proxy cannot have every number of
// worker threads that a MeshConfig or an annotation may ask for.
type ConcurrencyChecker interface {
	// CheckConcurrency returns an error that says what becomes of that many threads
	// instead and the way out, or nil if the proxy has them. It is not asked about 0,
	// which leaves the number to the CPU limit.
	CheckConcurrency(threads int32) error
}
