package main

import "testing"

// TestFaultsApply checks that every fault can be planted in the current code. Whether a
// test finds it is checked by `make mutate`.
func TestFaultsApply(t *testing.T) {
	faults, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		if _, err := f.changed("../.."); err != nil {
			t.Errorf("%s: %v", f.Fault, err)
		}
	}
}
