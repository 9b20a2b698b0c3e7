package playground

import "bytes"

// Lines is a writer that splits its input into lines.
type Lines struct {
	// Take is called with each line, without its end. It must not keep it.
	Take func(line []byte)
	rest []byte
}

// maxLine bounds the length of a line; longer ones are dropped.
const maxLine = 64 << 10

// Write adds text. It never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.Take(line)
		l.rest = rest
	}
	if len(l.rest) > maxLine {
		l.rest = nil
	}
	return len(p), nil
}
