// Package golden has end-to-end tests: manifests in, a proxy's View and configuration out.
// Each case is a txtar file in testdata, whose output UPDATE=1 writes.
package golden
