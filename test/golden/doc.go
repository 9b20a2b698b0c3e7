// Package golden holds tests from end to end: manifests in, what each proxy may see
// and its configuration out. One txtar file a case in testdata holds all of it, and
// UPDATE=1 writes what comes out.
package golden
