// Package samples embeds the samples for programs that run them.
package samples

import "embed"

// Bookstore contains the folder bookstore-smi, the bookstore with traffic policies.
//
//go:embed bookstore-smi/*.yaml
var Bookstore embed.FS
