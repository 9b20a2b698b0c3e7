package limit

import "time"

// Bucket limits a rate of requests: AtOnce may come at any time, and PerSecond come back.
// One that has only these two is full. It is for one goroutine at a time.
type Bucket struct {
	PerSecond, AtOnce float64

	// taken is how many are taken that have not come back yet.
	taken float64
	last  time.Time
}

// Take takes one and returns how long to wait for it; 0 or less is not at all.
func (b *Bucket) Take(now time.Time) time.Duration {
	if !b.last.IsZero() {
		b.taken = max(b.taken-now.Sub(b.last).Seconds()*b.PerSecond, 0)
	}
	b.taken++
	b.last = now
	return time.Duration((b.taken - b.AtOnce) / b.PerSecond * float64(time.Second))
}
