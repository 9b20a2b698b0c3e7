package cli

import "testing"

// TestLocalScripts runs what works without a cluster's help as users mistype it.
func TestLocalScripts(t *testing.T) { runScripts(t, "testdata/local") }
