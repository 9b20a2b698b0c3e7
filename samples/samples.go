// Package samples holds the samples for programs that show them.
package samples

import "embed"

// Bookstore is the folder bookstore-smi: the bookstore with traffic policies.
//
//go:embed bookstore-smi/*.yaml
var Bookstore embed.FS
