// Package manifest splits files of manifests into documents. It knows YAML's document
// markers and sequences of JSON objects, and not what the documents contain.
package manifest

import (
	"bytes"
	"io"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// IsFile reports whether a file with the name can contain manifests: it ends in .yaml, .yml or
// .json.
func IsFile(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// Format is the format of a document.
type Format int

// The formats of documents.
const (
	// None is text without a document: only blank lines and comments.
	None Format = iota
	YAML
	JSON
)

// Document is one document of a file: the separators, comments and blank lines before
// it, its text, and the rest after it. The three parts of all documents, joined, are
// the file.
type Document struct {
	Before, Text, After []byte
	Format              Format
	// Number is the document's number in the file, from 1, without empty documents.
	Number int
	// Line is the line of the file on which Text begins, from 1.
	Line int
}

// Content returns the text without the blank lines and comments at its beginning, and the
// line of the file on which that begins.
func (d Document) Content() (text []byte, line int) {
	text, line = d.Text, d.Line
	for end := LineEnd(text, 0); end < len(text) && !isContent(text[:end]); end = LineEnd(text, 0) {
		text, line = text[end:], line+1
	}
	return text, line
}

// Split splits a file into documents. A line that begins with --- always separates
// documents (YAML allows it in no scalar); a line ... ends one.
func Split(data []byte) []Document {
	var documents []Document
	number, line := 0, 1
	emit := func(before, text, after []byte, content bool) {
		d := Document{Before: before, Text: text, After: after, Line: line + bytes.Count(before, newline)}
		line = d.Line + bytes.Count(text, newline) + bytes.Count(after, newline)
		if !content {
			documents = append(documents, d)
			return
		}
		for _, d := range splitJSON(d) {
			number++
			d.Number = number
			documents = append(documents, d)
		}
	}

	// data[start:text] precedes the current document, whose text extends from there
	// to the current line.
	start, text, content := 0, 0, false
	if bytes.HasPrefix(data, ByteOrderMark) {
		text = len(ByteOrderMark)
	}
	for at := text; at < len(data); {
		end := LineEnd(data, at)
		current := data[at:end]
		switch {
		case IsMarker(current, "---"):
			if content {
				emit(data[start:text], data[text:at], nil, true)
				start, content = at, false
			}
			// The rest of the line belongs to the document.
			rest := bytes.TrimLeft(current[len("---"):], " \t\r\n")
			text = end - len(rest)
			content = len(rest) > 0 && isContent(rest)
		case IsMarker(current, "..."):
			if content {
				emit(data[start:text], data[text:at], data[at:end], true)
				start, content = end, false
			}
			text = end
		case !content && isContent(current):
			content = true
		}
		at = end
	}
	if start < len(data) {
		emit(data[start:text], data[text:], nil, content)
	}
	return documents
}

// ByteOrderMark may be at the beginning of a file.
var ByteOrderMark = []byte("\xef\xbb\xbf")

var newline = []byte("\n")

// LineEnd returns the offset after the line that begins at the offset.
func LineEnd(data []byte, offset int) int {
	if i := bytes.IndexByte(data[offset:], '\n'); i >= 0 {
		return offset + i + 1
	}
	return len(data)
}

// IsMarker reports whether a line is a document marker, which is "---" or "...". The rest of
// the line may have content.
func IsMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// isContent reports whether the line is part of a document: not a comment, a directive
// or blank.
func isContent(line []byte) bool {
	trimmed := bytes.TrimSpace(line)
	return len(trimmed) > 0 && trimmed[0] != '#' && line[0] != '%'
}

// splitJSON splits a text that is a sequence of JSON objects; any other text is one
// YAML document.
func splitJSON(d Document) []Document {
	d.Format = YAML
	if trimmed := bytes.TrimSpace(d.Text); len(trimmed) == 0 || trimmed[0] != '{' {
		return []Document{d}
	}
	var documents []Document
	decoder := jsontext.NewDecoder(bytes.NewReader(d.Text))
	end, line := 0, d.Line
	for {
		value, err := decoder.ReadValue()
		if err == io.EOF {
			break
		}
		if err != nil {
			return []Document{d}
		}
		next := int(decoder.InputOffset())
		begin := next - len(value)
		one := Document{Format: JSON, Before: d.Text[end:begin], Text: d.Text[begin:next]}
		one.Line = line + bytes.Count(one.Before, newline)
		line = one.Line + bytes.Count(one.Text, newline)
		documents = append(documents, one)
		end = next
	}
	first, last := &documents[0], &documents[len(documents)-1]
	first.Before = slices.Concat(d.Before, first.Before)
	last.After = slices.Concat(d.Text[end:], d.After)
	return documents
}
