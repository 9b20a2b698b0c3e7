package inject

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// texts returns the pods of the corpus as JSON, and many that are damaged.
func texts(t testing.TB) []string {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/pods.txtar")
	if err != nil {
		t.Fatal(err)
	}
	list := []string{"", "null", "{", "[]", `{"spec":null}`, `{"spec":{"containers":[null]}}`, `{"Spec":{}}`, `{"kind":"Pod"}`}
	for _, f := range archive.Files {
		pod, err := yaml.YAMLToJSON(f.Data)
		if err != nil {
			t.Fatal(err)
		}
		text := string(pod)
		list = append(list, text, text+"x", text[:len(text)/2], strings.ToUpper(text),
			strings.ReplaceAll(text, `":"`, `":["`), strings.ReplaceAll(text, `"name":"`, `"name":1,"name":"`),
			strings.ReplaceAll(text, `"containers":[`, `"containers":[{"name":3},`), strings.ReplaceAll(text, "a", "\xff"))
	}
	return list
}

// TestOnePassReadsTheSame compares unmarshal with the decoder that looks for errors first.
func TestOnePassReadsTheSame(t *testing.T) {
	read, refused := 0, 0
	for _, text := range texts(t) {
		var got, want corev1.Pod
		gotErr, wantErr := unmarshal([]byte(text), &got), jsonv2.Unmarshal([]byte(text), &want, strictly)
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Errorf("the error for %.200s is %v, want %v", text, gotErr, wantErr)
		}
		if gotErr != nil {
			refused++
			continue
		}
		read++
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%.200s is read as %+v, want %+v", text, got, want)
		}
	}
	if read < 20 || refused < 20 {
		t.Errorf("%d texts were read and %d refused, want many of both", read, refused)
	}
}

// TestReviewIsReadWithItsPod compares the pod of a review with the same pod alone.
func TestReviewIsReadWithItsPod(t *testing.T) {
	for _, text := range texts(t) {
		want, wantErr := decodePod([]byte(text))
		in, err := unmarshalReview([]byte(`{"request":{"object":` + text + `,"uid":"x"}}`))
		if !json.Valid([]byte(text)) {
			if err == nil {
				t.Errorf("a review with %.200s is read", text)
			}
			continue
		}
		if err != nil {
			// What is wrong is found in the review already.
			if wantErr == nil {
				t.Errorf("the error for %.200s is %v", text, err)
			}
			continue
		}
		o := &in.Request.Object
		switch {
		case in.Request.UID != "x":
			t.Errorf("with %.200s the uid is %q", text, in.Request.UID)
		case text == "null":
			if o.pod != nil || o.raw != nil {
				t.Errorf("null is read as %+v", o)
			}
		case o.pod != nil:
			if checkKind(o.pod) == nil != (wantErr == nil) || wantErr == nil && !reflect.DeepEqual(o.pod, want) {
				t.Errorf("%.200s is read as %+v, want %+v, %v", text, o.pod, want, wantErr)
			}
		default:
			if wantErr == nil || string(o.raw) != text {
				t.Errorf("%.200s is kept as %s, but alone it is read: %v", text, o.raw, wantErr)
			}
		}
	}
}
