package terminal

import (
	"io"
	"unicode/utf8"
)

// Writer returns a writer for a stream of text such as a log: it writes to w what it is given, as
// Text does. A character may arrive in two parts.
func Writer(w io.Writer) io.Writer { return &writer{to: w} }

type writer struct {
	to io.Writer
	// begun is the beginning of a character whose end has not arrived.
	begun []byte
}

// Write implements [io.Writer].
func (w *writer) Write(data []byte) (int, error) {
	text := append(w.begun, data...)
	end := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if first := text[len(text)-n]; utf8.RuneStart(first) {
			if !utf8.FullRune(text[len(text)-n:]) {
				end = len(text) - n
			}
			break
		}
	}
	w.begun = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(w.to, Text(string(text[:end]))); err != nil {
		return 0, err
	}
	return len(data), nil
}
