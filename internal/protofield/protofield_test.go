package protofield

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func TestEach(t *testing.T) {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a")
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 300)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 3, protowire.Fixed64Type), 7)
	b = protowire.AppendTag(protowire.AppendTag(b, 4, protowire.StartGroupType), 4, protowire.EndGroupType)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), "")
	b = protowire.AppendString(protowire.AppendTag(b, 5, protowire.BytesType), "b")
	var got []string
	note := func(number protowire.Number, content []byte) error {
		got = append(got, fmt.Sprintf("%d:%s", number, content))
		return nil
	}
	if err := Each(b, note); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(got, " "); text != "1:a 1: 5:b" {
		t.Errorf("the fields are %s", text)
	}
	for end := range b {
		got = nil
		if err := Each(b[:end], note); err == nil && strings.Join(got, " ") == "1:a 1: 5:b" {
			t.Errorf("the first %d of %d bytes are read like all", end, len(b))
		}
	}
	wrong := errors.New("wrong")
	if err := Each(b, func(protowire.Number, []byte) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("the error is %v, want %v", err, wrong)
	}
}
