package mirror

import (
	"encoding/json"
	"errors"
	"io"
)

// writeChange writes the Change as JSON, file by file to save memory: many long Changes may
// be sent at the same time.
func writeChange(w io.Writer, change Change) error {
	encoder := json.NewEncoder(w)
	// No browser reads the JSON.
	encoder.SetEscapeHTML(false)
	write := func(before string, value any) error {
		if _, err := io.WriteString(w, before); err != nil {
			return err
		}
		return encoder.Encode(value)
	}
	if err := write(`{"version":`, change.Version); err != nil {
		return err
	}
	if change.Base != "" {
		if err := write(`,"base":`, change.Base); err != nil {
			return err
		}
	}
	before := `,"files":[`
	for _, file := range change.Files {
		if err := write(before, file); err != nil {
			return err
		}
		before = ","
	}
	end := "}"
	if len(change.Files) > 0 {
		end = "]}"
	}
	if len(change.Gone) > 0 {
		if err := write(end[:len(end)-1]+`,"gone":`, change.Gone); err != nil {
			return err
		}
		end = "}"
	}
	_, err := io.WriteString(w, end)
	return err
}

// readChange reads a Change, with little more memory than its files need.
func readChange(r io.Reader) (*Change, error) {
	decoder := json.NewDecoder(r)
	if err := expect(decoder, '{'); err != nil {
		return nil, err
	}
	change := new(Change)
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		switch key {
		case "version":
			err = decoder.Decode(&change.Version)
		case "base":
			err = decoder.Decode(&change.Base)
		case "files":
			change.Files, err = readFiles(decoder)
		case "gone":
			err = decoder.Decode(&change.Gone)
		default:
			// Later servers may add fields.
			var unknown json.RawMessage
			err = decoder.Decode(&unknown)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := expect(decoder, '}'); err != nil {
		return nil, err
	}
	return change, nil
}

func readFiles(decoder *json.Decoder) ([]*File, error) {
	if err := expect(decoder, '['); err != nil {
		return nil, err
	}
	var files []*File
	for decoder.More() {
		var file *File
		if err := decoder.Decode(&file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, expect(decoder, ']')
}

func expect(decoder *json.Decoder, delimiter json.Delim) error {
	token, err := decoder.Token()
	if err == nil && token != delimiter {
		err = errors.New("unexpected JSON structure")
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
