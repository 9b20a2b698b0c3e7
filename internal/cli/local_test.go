package cli

import "testing"

// TestLocalScripts runs commands without a cluster, with mistakes that users make.
func TestLocalScripts(t *testing.T) { runScripts(t, "testdata/local") }
