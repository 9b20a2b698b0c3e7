package outrigger_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestSizes checks what the pages say about the sizes of the product and of the workshop, to a
// tenth.
func TestSizes(t *testing.T) {
	var product, workshop int
	for _, p := range listPackages(t) {
		lines := &product
		if isWorkshop(p.ImportPath) {
			lines = &workshop
		}
		for _, file := range p.GoFiles {
			content, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			*lines += bytes.Count(content, []byte("\n"))
		}
	}
	for _, page := range []string{"README.md", "CONTRIBUTING.md"} {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		said := regexp.MustCompile(`(?s)product is about ([\d,]+)\s+lines.*workshop, about\s+([\d,]+)\s+lines`).FindSubmatch(content)
		if said == nil {
			t.Errorf("%s does not say how many lines the product and the workshop have", page)
			continue
		}
		for i, lines := range []int{product, workshop} {
			number, err := strconv.Atoi(strings.ReplaceAll(string(said[i+1]), ",", ""))
			if err != nil || math.Abs(float64(number-lines)) > 0.1*float64(lines) {
				t.Errorf("%s says %s lines for one that has %d", page, said[i+1], lines)
			}
		}
	}
}
