package main

import "testing"

// TestFaultsApply holds that every fault can be planted in the code as it is. Whether a
// test finds it is for `make mutate`.
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
