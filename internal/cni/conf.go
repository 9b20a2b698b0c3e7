package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
)

// entry is this plug-in's entry in a network's list of plug-ins.
const entry = `{"type": "` + Name + `", "capabilities": {"` + podAnnotations + `": true, "dns": true}}`

// element is the position of a plug-in in the text of a list.
type element struct {
	start, end int
	// before is the end of the previous element, where the separator begins.
	before int
	ours   bool
}

// elements finds the plug-ins in a network's list.
func elements(text []byte) ([]element, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := expect(d, json.Delim('{')); err != nil {
		return nil, err
	}
	var list []element
	found := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		if key != "plugins" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return nil, err
			}
			continue
		}
		if found {
			return nil, errors.New(`"plugins" occurs twice`)
		}
		found = true
		if err := expect(d, json.Delim('[')); err != nil {
			return nil, fmt.Errorf(`"plugins": %w`, err)
		}
		for before := int(d.InputOffset()); d.More(); before = list[len(list)-1].end {
			var raw json.RawMessage
			if err := d.Decode(&raw); err != nil {
				return nil, err
			}
			var plugin struct {
				Type string `json:"type"`
			}
			if err := json.Unmarshal(raw, &plugin); err != nil || plugin.Type == "" {
				return nil, fmt.Errorf("plug-in %d of the list has no type", len(list)+1)
			}
			end := int(d.InputOffset())
			list = append(list, element{start: end - len(raw), end: end, before: before, ours: plugin.Type == Name})
		}
		if err := expect(d, json.Delim(']')); err != nil {
			return nil, err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is content after the list")
	}
	if !slices.ContainsFunc(list, func(e element) bool { return !e.ours }) {
		return nil, errors.New(`"plugins" has no plug-in that creates a network`)
	}
	return list, nil
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%v instead of %v", got, want)
	}
	return nil
}

// withEntry returns the list with exactly one, correct entry of this plug-in; a new one is
// added at the end. The rest of the text is unchanged.
func withEntry(text []byte) ([]byte, error) {
	list, err := elements(text)
	if err != nil {
		return nil, err
	}
	var ours []element
	for _, e := range list {
		if e.ours {
			ours = append(ours, e)
		}
	}
	if len(ours) == 1 && !list[0].ours && same(text[ours[0].start:ours[0].end], []byte(entry)) {
		return text, nil
	}
	if text, err = withoutEntry(text); err != nil {
		return nil, err
	}
	if list, err = elements(text); err != nil {
		return nil, err
	}
	last := list[len(list)-1]
	gap := text[last.before:last.start]
	space := gap[bytes.LastIndexByte(gap, ',')+1:]
	return slices.Concat(text[:last.end], []byte(","), space, []byte(entry), text[last.end:]), nil
}

// withoutEntry returns the list without this plug-in's entries. It reverts withEntry.
func withoutEntry(text []byte) ([]byte, error) {
	for {
		list, err := elements(text)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(e element) bool { return e.ours })
		switch {
		case i < 0:
			return text, nil
		case i == 0:
			text = slices.Concat(text[:list[0].start], text[list[1].start:])
		default:
			text = slices.Concat(text[:list[i].before], text[list[i].end:])
		}
	}
}

func same(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// listOf converts the configuration of a single plug-in to a list.
func listOf(text []byte) ([]byte, error) {
	var single struct {
		CNIVersion string `json:"cniVersion,omitempty"`
		Name       string `json:"name"`
		Type       string `json:"type"`
	}
	if err := json.Unmarshal(text, &single); err != nil {
		return nil, err
	}
	if single.Type == "" {
		return nil, errors.New("the plug-in has no type")
	}
	var list struct {
		CNIVersion string          `json:"cniVersion,omitempty"`
		Name       string          `json:"name"`
		Plugins    json.RawMessage `json:"plugins"`
	}
	list.CNIVersion, list.Name = single.CNIVersion, single.Name
	list.Plugins = slices.Concat([]byte("["), text, []byte("]"))
	made, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(made, '\n'), nil
}
