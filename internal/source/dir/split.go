package dir

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// document is a part of a file with its first line number.
type document struct {
	text []byte
	line int
}

// splitYAML splits a file at its document markers. It skips documents with only blank
// lines and comments.
func splitYAML(text []byte) []document {
	var documents []document
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	// The current document is text[start:at], if it has content.
	var line, start, at int
	var begin document
	content := false
	end := func() {
		if content {
			begin.text = text[start:at]
			documents = append(documents, begin)
		}
		content = false
	}
	for row := range bytes.Lines(text) {
		line++
		switch {
		case isMarker(row):
			end()
			if rest := row[len("---"):]; isContent(rest) {
				start, begin.line, content = at+len("---"), line, true
			}
		case !content && isContent(row):
			start, begin.line, content = at, line, true
		}
		at += len(row)
	}
	end()
	return documents
}

// isMarker reports whether a line is a document marker.
func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0
}

// isContent reports whether a line is not blank, a comment or a directive.
func isContent(line []byte) bool {
	trimmed := bytes.TrimSpace(line)
	return len(trimmed) > 0 && trimmed[0] != '#' && line[0] != '%'
}

// splitJSON splits a document of consecutive JSON objects. It returns false for other
// documents.
func splitJSON(d document) ([]document, bool) {
	if trimmed := bytes.TrimSpace(d.text); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, false
	}
	var values []document
	decoder := json.NewDecoder(bytes.NewReader(d.text))
	line, end := d.line, 0
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return values, true
		}
		if err != nil {
			return nil, false
		}
		next := int(decoder.InputOffset())
		line += bytes.Count(d.text[end:next-len(raw)], []byte("\n"))
		values = append(values, document{raw, line})
		line += bytes.Count(raw, []byte("\n"))
		end = next
	}
}
