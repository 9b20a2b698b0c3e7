package ends

import (
	"fmt"
	"slices"
	"strings"
)

// message is a request or an answer.
type message struct {
	// start is the first line.
	start            string
	fields, trailers []field
	// framing is how the end of the body is marked, or "".
	framing, body string
	cut           bool
}

type field struct{ name, value string }

func (m message) value(name string) string { return valueOf(m.fields, name) }

func valueOf(fields []field, name string) string {
	for _, f := range fields {
		if strings.EqualFold(f.name, name) {
			return f.value
		}
	}
	return ""
}

// status returns the status of an answer.
func (m message) status() string {
	if len(m.start) < 12 || !strings.HasPrefix(m.start, "HTTP/") {
		return ""
	}
	return m.start[9:12]
}

// differences describes how what both ends saw differs from what they see without a mesh.
func differences(without, with seen) []string {
	var out []string
	if len(with.server) > len(without.server) {
		out = append(out, "the server gets the request again")
	}
	for i, want := range without.server {
		if i >= len(with.server) {
			out = append(out, "the server gets no request")
			break
		}
		out = append(out, prefixed("request: ", diffMessages(want, with.server[i]))...)
	}
	finals := func(all []message) []message {
		return slices.DeleteFunc(slices.Clone(all), func(m message) bool { return isInterim(m) })
	}
	interims := func(all []message) (out []string) {
		for _, m := range all {
			if isInterim(m) {
				out = append(out, m.status())
			}
		}
		return out
	}
	was, is := interims(without.client), interims(with.client)
	for _, status := range was {
		if !slices.Contains(is, status) {
			out = append(out, "answer: loses the interim answer "+status)
		}
	}
	for _, status := range is {
		if !slices.Contains(was, status) {
			out = append(out, "answer: gets the interim answer "+status)
		}
	}
	answers, got := finals(without.client), finals(with.client)
	for i, want := range answers {
		if i >= len(got) {
			out = append(out, "the client gets no answer")
			break
		}
		if want.status() != got[i].status() && want.status() != "" {
			out = append(out, fmt.Sprintf("the client gets %s for %s", got[i].status(), want.status()))
			continue
		}
		out = append(out, prefixed("answer: ", diffMessages(want, got[i]))...)
	}
	if with.clientEvent != without.clientEvent {
		out = append(out, fmt.Sprintf("the client's connection %s, where it %s", with.clientEvent, without.clientEvent))
	}
	if with.serverEvent != without.serverEvent && len(with.server) > 0 {
		out = append(out, "the server "+with.serverEvent)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func isInterim(m message) bool { return strings.HasPrefix(m.status(), "1") && m.status() != "101" }

func prefixed(prefix string, all []string) []string {
	for i := range all {
		all[i] = prefix + all[i]
	}
	return all
}

func diffMessages(want, got message) []string {
	var out []string
	wantLine, gotLine := strings.SplitN(want.start, " ", 3), strings.SplitN(got.start, " ", 3)
	if len(wantLine) == 3 && len(gotLine) == 3 {
		for i, part := range []string{"method", "target", "version"} {
			if strings.HasPrefix(want.start, "HTTP/") {
				part = []string{"version", "status", "reason phrase"}[i]
			}
			if wantLine[i] != gotLine[i] {
				out = append(out, fmt.Sprintf("%s %q becomes %q", part, short(wantLine[i]), short(gotLine[i])))
			}
		}
	} else if want.start != got.start {
		out = append(out, fmt.Sprintf("first line %q becomes %q", want.start, got.start))
	}
	out = append(out, diffFields("header", want.fields, got.fields)...)
	out = append(out, diffFields("trailer", want.trailers, got.trailers)...)
	if want.framing != got.framing {
		out = append(out, fmt.Sprintf("the end is marked by %s, not %s", named(got.framing), named(want.framing)))
	}
	switch {
	case !want.cut && got.cut:
		out = append(out, "is cut off")
	case want.cut && !got.cut:
		out = append(out, "looks complete")
	case want.body != got.body:
		out = append(out, fmt.Sprintf("the body %q becomes %q", short(want.body), short(got.body)))
	}
	return out
}

func named(framing string) string {
	if framing == "" {
		return "nothing"
	}
	return framing
}

// diffFields compares headers without the ones that mark the end.
func diffFields(kind string, want, got []field) []string {
	var out []string
	framing := []string{"content-length", "transfer-encoding", fieldName}
	lines := func(all []field) map[string][]string {
		by := map[string][]string{}
		for _, f := range all {
			if name := strings.ToLower(f.name); !slices.Contains(framing, name) {
				by[name] = append(by[name], f.value)
			}
		}
		return by
	}
	before, after := lines(want), lines(got)
	for full, values := range before {
		// Those of many headers are alike.
		name := strings.TrimRight(full, "0123456789")
		switch now := after[full]; {
		case now == nil:
			out = append(out, kind+" "+name+" is lost")
		case slices.Equal(values, now):
		case len(now) < len(values) && strings.ReplaceAll(strings.Join(now, ","), " ", "") == strings.ReplaceAll(strings.Join(values, ","), " ", ""):
			out = append(out, kind+" lines of "+name+" are joined")
		case len(now) < len(values) && strings.ReplaceAll(strings.Join(now, ";"), " ", "") == strings.ReplaceAll(strings.Join(values, ";"), " ", ""):
			out = append(out, kind+" lines of "+name+" are joined")
		default:
			out = append(out, fmt.Sprintf("%s %s %q becomes %q", kind, name, short(strings.Join(values, "|")), short(strings.Join(now, "|"))))
		}
	}
	for name := range after {
		if before[name] == nil {
			out = append(out, kind+" "+name+" is added")
		}
	}
	spelled := func(all []field) map[string]bool {
		names := map[string]bool{}
		for _, f := range all {
			names[f.name] = true
		}
		return names
	}
	names := spelled(got)
	for _, f := range want {
		lower := strings.ToLower(f.name)
		if lower != fieldName && lower != f.name && !names[f.name] && names[lower] {
			out = append(out, kind+" names are in lower case")
			break
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
