package offline

import (
	"bytes"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

type format int

const (
	// formatNone is text without a document: only blank lines and comments.
	formatNone format = iota
	formatYAML
	formatJSON
)

// document is one document of a file: the separators, comments and blank lines before
// it, its text, and the rest after it. The three parts of all documents, joined, are
// the file.
type document struct {
	before, text, after []byte
	format              format
	// number is the document's number in the file, from 1, without empty documents.
	number int
	// line is the line of the file on which text begins, from 1.
	line int

	// Set by read.
	json    []byte
	objects []object
	err     error
}

// split splits a file into documents. A line that begins with --- always separates
// documents (YAML allows it in no scalar); a line ... ends one.
func split(data []byte) []document {
	var documents []document
	number, line := 0, 1
	emit := func(before, text, after []byte, content bool) {
		d := document{before: before, text: text, after: after, line: line + bytes.Count(before, newline)}
		line = d.line + bytes.Count(text, newline) + bytes.Count(after, newline)
		if !content {
			documents = append(documents, d)
			return
		}
		for _, d := range splitJSON(d) {
			number++
			d.number = number
			documents = append(documents, d)
		}
	}

	// data[start:text] precedes the current document, whose text extends from there
	// to the current line.
	start, text, content := 0, 0, false
	if bytes.HasPrefix(data, byteOrderMark) {
		text = len(byteOrderMark)
	}
	for at := text; at < len(data); {
		end := lineEnd(data, at)
		current := data[at:end]
		switch {
		case isMarker(current, "---"):
			if content {
				emit(data[start:text], data[text:at], nil, true)
				start, content = at, false
			}
			// The rest of the line belongs to the document.
			rest := bytes.TrimLeft(current[len("---"):], " \t\r\n")
			text = end - len(rest)
			content = len(rest) > 0 && isContent(rest)
		case isMarker(current, "..."):
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

var (
	newline       = []byte("\n")
	byteOrderMark = []byte("\xef\xbb\xbf")
)

// lineEnd returns the offset after the line that begins at the offset.
func lineEnd(data []byte, at int) int {
	if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(data)
}

func isMarker(line []byte, marker string) bool {
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
func splitJSON(d document) []document {
	d.format = formatYAML
	if trimmed := bytes.TrimSpace(d.text); len(trimmed) == 0 || trimmed[0] != '{' {
		return []document{d}
	}
	var documents []document
	decoder := jsontext.NewDecoder(bytes.NewReader(d.text))
	end, line := 0, d.line
	for {
		value, err := decoder.ReadValue()
		if err == io.EOF {
			break
		}
		if err != nil {
			return []document{d}
		}
		next := int(decoder.InputOffset())
		begin := next - len(value)
		one := document{format: formatJSON, before: d.text[end:begin], text: d.text[begin:next]}
		one.line = line + bytes.Count(one.before, newline)
		line = one.line + bytes.Count(one.text, newline)
		documents = append(documents, one)
		end = next
	}
	first, last := &documents[0], &documents[len(documents)-1]
	first.before = slices.Concat(d.before, first.before)
	last.after = slices.Concat(d.text[end:], d.after)
	return documents
}
