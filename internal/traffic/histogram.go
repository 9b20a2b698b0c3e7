package traffic

import (
	"cmp"
	"slices"
)

// Histogram is a distribution of durations.
type Histogram struct {
	// Buckets are sorted by their bounds.
	Buckets []Bucket `json:"buckets,omitempty"`
	// Over counts what is above the last bound.
	Over float64 `json:"over,omitempty"`
}

// Bucket counts the durations above the bound of the bucket before it and up to its own.
type Bucket struct {
	// Bound is in seconds.
	Bound float64 `json:"bound"`
	Count float64 `json:"count"`
}

// Add adds the counts of another Histogram, multiplied by a factor.
func (h *Histogram) Add(other Histogram, factor float64) {
	for _, b := range other.Buckets {
		h.count(b.Bound, factor*b.Count)
	}
	h.Over += factor * other.Over
}

// count adds to the bucket with a bound, which it inserts if necessary.
func (h *Histogram) count(bound, n float64) {
	at, found := slices.BinarySearchFunc(h.Buckets, bound, func(b Bucket, bound float64) int { return cmp.Compare(b.Bound, bound) })
	if !found {
		h.Buckets = slices.Insert(h.Buckets, at, Bucket{Bound: bound})
	}
	h.Buckets[at].Count += n
}

func (h *Histogram) total() float64 {
	sum := h.Over
	for _, b := range h.Buckets {
		sum += b.Count
	}
	return sum
}

// Quantile estimates the duration, in seconds, that a share of the requests do not exceed. It
// does so as histogram_quantile of Prometheus: durations are assumed to be spread evenly
// within a bucket, and what is above the last bound counts as that bound. It returns nil if
// there are no durations.
func (h *Histogram) Quantile(share float64) *float64 {
	rank, below, lower := share*h.total(), 0.0, 0.0
	if h.total() == 0 || len(h.Buckets) == 0 {
		return nil
	}
	for _, b := range h.Buckets {
		if b.Count > 0 && below+b.Count >= rank {
			return new(lower + (b.Bound-lower)*(rank-below)/b.Count)
		}
		below += b.Count
		lower = b.Bound
	}
	return &lower
}
