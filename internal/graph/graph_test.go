package graph

import (
	"cmp"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// text is a value for inputs and tables. Texts with the same content are equal.
type text struct{ content string }

func (t *text) Digest() mesh.Digest { return mesh.DigestBytes([]byte(t.content)) }

func of(content string) *text { return &text{content} }

// words yields the words of a text, each with the text's key.
func words(key string, t *text) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for word := range strings.FieldsSeq(t.content) {
			if !yield(word, key) {
				return
			}
		}
	}
}

// contents returns a Table's texts by name.
func contents(t mesh.Table[*text]) map[string]string {
	all := map[string]string{}
	for name, value := range t.All() {
		all[name] = value.content
	}
	return all
}

// bench is a graph with an input and a table that records which functions ran.
type bench struct {
	Graph
	in  *Input[string, *text]
	out *Table[*text]
	ran []string
}

func newBench() *bench {
	b := &bench{}
	b.in = NewInput[string, *text](&b.Graph)
	b.out = NewTable[*text](&b.Graph)
	return b
}

// update updates the graph and returns the functions that ran, sorted.
func (b *bench) update() []string {
	b.ran = nil
	b.Update()
	slices.Sort(b.ran)
	return b.ran
}

// want updates the graph, and checks which functions ran and what the table contains.
func (b *bench) want(t *testing.T, what string, ran []string, table map[string]string) {
	t.Helper()
	if got := b.update(); !slices.Equal(got, ran) {
		t.Errorf("%s: ran %q, want %q", what, got, ran)
	}
	if diff := gocmp.Diff(table, contents(b.out.Current())); diff != "" {
		t.Errorf("%s: the table (-want +got):\n%s", what, diff)
	}
}

func TestInput(t *testing.T) {
	b := newBench()
	watched := NewInput[string, *text](&b.Graph)
	NewRule(watched, func(r *Reader, key string, out *Output) {
		value, ok := b.in.Get(r, key)
		b.ran = append(b.ran, key)
		if ok {
			Put(out, b.out, key, value)
		}
	})
	watched.Set("a", of(""))
	watched.Set("none", of(""))
	b.want(t, "at first", []string{"a", "none"}, map[string]string{})
	b.in.Set("a", of("1"))
	b.want(t, "a value comes", []string{"a"}, map[string]string{"a": "1"})
	first := b.in.Current("a")
	b.in.Set("a", of("1"))
	b.want(t, "an equal value", nil, map[string]string{"a": "1"})
	if b.in.Current("a") != first {
		t.Error("an equal value took the place of the one that was there")
	}
	b.in.Set("other", of("1"))
	b.want(t, "a key that nobody reads", nil, map[string]string{"a": "1"})
	b.in.Delete("a")
	b.in.Delete("a")
	b.in.Delete("never there")
	b.want(t, "the value goes", []string{"a"}, map[string]string{})
	b.in.Set("a", of("1"))
	b.in.Delete("a")
	b.want(t, "it comes and goes", []string{"a"}, map[string]string{})
	b.in.Set("none", of("2"))
	b.want(t, "a key that was absent when it was read", []string{"none"}, map[string]string{"none": "2"})
	watched.Delete("none")
	b.want(t, "the rule's key goes, which its function does not read", nil, map[string]string{})
	if b.in.Current("none").content != "2" || b.in.Current("a") != nil || b.in.Current("never there") != nil {
		t.Error("Current is not what was set")
	}
}

func TestIndex(t *testing.T) {
	b := newBench()
	index := NewIndex(b.in, strings.Compare, words)
	letters := NewIndex(b.in, strings.Compare, func(_ string, t *text) iter.Seq2[string, string] {
		return func(yield func(string, string) bool) {
			for word := range strings.FieldsSeq(t.content) {
				if !yield(word[:1], word) {
					return
				}
			}
		}
	})
	watched := NewInput[string, *text](&b.Graph)
	NewRule(watched, func(r *Reader, key string, out *Output) {
		b.ran = append(b.ran, key)
		found := index.Get(r, key)
		if len(key) == 1 {
			found = letters.Get(r, key)
		}
		Put(out, b.out, key, of(strings.Join(found, " ")))
	})
	watched.Set("red", of(""))
	watched.Set("r", of(""))
	b.want(t, "nothing is found", []string{"r", "red"}, map[string]string{"red": "", "r": ""})
	b.in.Set("2", of("red blue"))
	b.in.Set("1", of("red red"))
	b.want(t, "sorted, each once", []string{"r", "red"}, map[string]string{"red": "1 2", "r": "red"})
	b.in.Set("2", of("blue red"))
	b.want(t, "the value says the same of the key", nil, map[string]string{"red": "1 2", "r": "red"})
	b.in.Set("1", of("red"))
	b.want(t, "it says so once less", nil, map[string]string{"red": "1 2", "r": "red"})
	b.in.Delete("1")
	b.want(t, "one of two that say so of the letter goes", []string{"red"}, map[string]string{"red": "2", "r": "red"})
	b.in.Set("2", of("blue"))
	b.want(t, "the last goes", []string{"r", "red"}, map[string]string{"red": "", "r": ""})
	b.in.Set("3", of("red rose"))
	b.want(t, "it comes back", []string{"r", "red"}, map[string]string{"red": "3", "r": "red rose"})
}

// TestIndexKeepsWhatWasRead checks that a list that a function keeps is not changed.
func TestIndexKeepsWhatWasRead(t *testing.T) {
	b := newBench()
	index := NewIndex(b.in, strings.Compare, words)
	var lists, want [][]string
	NewRule(b.in, func(r *Reader, key string, _ *Output) {
		list := index.Get(r, "red")
		lists, want = append(lists, list), append(want, slices.Clone(list))
	})
	for _, key := range []string{"2", "4", "1", "3"} {
		b.in.Set(key, of("red"))
		b.update()
	}
	b.in.Delete("2")
	b.update()
	if diff := gocmp.Diff(want, lists); diff != "" {
		t.Errorf("the lists that were read (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"1", "3", "4"}, lists[len(lists)-1]); diff != "" {
		t.Errorf("the list that was read last (-want +got):\n%s", diff)
	}
}

// TestIndexCopiesOnlyWhatWasRead checks that a key with thousands of entries, as there are when a
// mesh is read for the first time, does not copy all of them for each.
func TestIndexCopiesOnlyWhatWasRead(t *testing.T) {
	b := newBench()
	NewIndex(b.in, strings.Compare, words)
	value := of("red")
	keys := make([]string, 8<<10)
	for i := range keys {
		keys[i] = fmt.Sprintf("%05d", i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, key := range keys {
		b.in.Set(key, value)
	}
	for _, key := range keys[1:] {
		b.in.Delete(key)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(keys)); each > 4<<10 {
		t.Errorf("an entry costs %d bytes", each)
	}
}

func TestMemo(t *testing.T) {
	b := newBench()
	// length reads one text, and even reads the result of length.
	length := NewMemo(&b.Graph, func(r *Reader, key string) int {
		b.ran = append(b.ran, "length "+key)
		value, ok := b.in.Get(r, key)
		if !ok {
			return -1
		}
		return len(value.content)
	})
	even := NewMemo(&b.Graph, func(r *Reader, key string) *text {
		b.ran = append(b.ran, "even "+key)
		return of(fmt.Sprint(length.Get(r, key)%2 == 0))
	})
	watched := NewInput[string, *text](&b.Graph)
	// A rule reads the texts that its value names.
	NewRule(watched, func(r *Reader, key string, out *Output) {
		b.ran = append(b.ran, "rule "+key)
		value, _ := watched.Get(r, key)
		for name := range strings.FieldsSeq(value.content) {
			Put(out, b.out, key+name, even.Get(r, name))
		}
	})
	b.in.Set("a", of("xx"))
	b.in.Set("b", of("x"))
	watched.Set("1", of("a b none"))
	watched.Set("2", of("a a"))
	b.want(t, "each is computed once", []string{"even a", "even b", "even none", "length a", "length b", "length none", "rule 1", "rule 2"},
		map[string]string{"1a": "true", "1b": "false", "1none": "false", "2a": "true"})
	former := b.out.Current()
	b.in.Set("c", of("x"))
	b.want(t, "what nobody read", nil, contents(former))
	b.in.Set("a", of("yy"))
	b.want(t, "the result of length is the same", []string{"length a"}, contents(former))
	b.in.Set("a", of("xxxx"))
	b.want(t, "the result of even has the same digest", []string{"even a", "length a"}, contents(former))
	b.in.Set("a", of("xxx"))
	b.want(t, "both change", []string{"even a", "length a", "rule 1", "rule 2"},
		map[string]string{"1a": "false", "1b": "false", "1none": "false", "2a": "false"})
	b.in.Set("none", of(""))
	b.want(t, "an absent key comes", []string{"even none", "length none", "rule 1"},
		map[string]string{"1a": "false", "1b": "false", "1none": "true", "2a": "false"})

	watched.Set("1", of("b"))
	b.want(t, "one of two readers goes", []string{"rule 1"}, map[string]string{"1b": "false", "2a": "false"})
	b.in.Set("none", of("x"))
	b.want(t, "nobody reads it any more", nil, map[string]string{"1b": "false", "2a": "false"})
	b.in.Set("a", of("xx"))
	b.want(t, "one still reads it", []string{"even a", "length a", "rule 2"}, map[string]string{"1b": "false", "2a": "true"})
	watched.Delete("2")
	b.want(t, "the last reader goes", nil, map[string]string{"1b": "false"})
	if len(even.cells) != 1 || len(length.cells) != 1 {
		t.Errorf("%d and %d results are remembered, and one is read", len(even.cells), len(length.cells))
	}
	watched.Set("2", of("a"))
	b.want(t, "what was forgotten is computed anew", []string{"even a", "length a", "rule 2"}, map[string]string{"1b": "false", "2a": "true"})
}

// TestMemoInOrder checks that a function is not run for a reader that would no longer read it:
// here it would panic.
func TestMemoInOrder(t *testing.T) {
	b := newBench()
	first := NewMemo(&b.Graph, func(r *Reader, key string) string {
		value, ok := b.in.Get(r, key)
		if !ok {
			panic("asked for the word of a text that is not there")
		}
		return strings.Fields(value.content)[0]
	})
	watched := NewInput[string, *text](&b.Graph)
	NewRule(watched, func(r *Reader, key string, out *Output) {
		if value, _ := watched.Get(r, key); value.content == "careful" {
			if _, ok := b.in.Get(r, key); !ok {
				return
			}
		}
		Put(out, b.out, key, of(first.Get(r, key)))
	})
	watched.Set("a", of("careful"))
	b.in.Set("a", of("red blue"))
	b.want(t, "at first", nil, map[string]string{"a": "red"})
	b.in.Delete("a")
	b.want(t, "the text goes", nil, map[string]string{})
	watched.Set("b", of("trusting"))
	b.in.Set("b", of("red blue"))
	b.want(t, "it does not look first", nil, map[string]string{"b": "red"})
	watched.Set("b", of("careful"))
	b.want(t, "it looks first now", nil, map[string]string{"b": "red"})
	b.in.Delete("b")
	b.want(t, "the text goes again", nil, map[string]string{})
}

func TestRule(t *testing.T) {
	b := newBench()
	NewRule(b.in, func(r *Reader, key string, out *Output) {
		b.ran = append(b.ran, key)
		value, _ := b.in.Get(r, key)
		for word := range strings.FieldsSeq(value.content) {
			Put(out, b.out, word, of(word))
		}
	})
	b.in.Set("1", of("red blue"))
	b.in.Set("2", of("blue"))
	b.want(t, "two keys put the same", []string{"1", "2"}, map[string]string{"red": "red", "blue": "blue"})
	b.in.Set("1", of("red"))
	b.want(t, "one takes it back", []string{"1"}, map[string]string{"red": "red", "blue": "blue"})
	b.in.Delete("2")
	b.want(t, "the other takes it back", nil, map[string]string{"red": "red"})
	b.in.Set("1", of("red red green"))
	b.want(t, "put twice", []string{"1"}, map[string]string{"red": "red", "green": "green"})
	b.in.Set("1", of("green red"))
	b.want(t, "in another order", []string{"1"}, map[string]string{"red": "red", "green": "green"})
	b.in.Delete("1")
	b.in.Set("1", of("green"))
	b.want(t, "removed and added", []string{"1"}, map[string]string{"green": "green"})
	b.in.Set("3", of("blue"))
	b.in.Delete("3")
	b.want(t, "added and removed", nil, map[string]string{"green": "green"})
	b.in.Set("1", of("red"))
	b.in.Delete("1")
	b.in.Set("1", of("green"))
	b.in.Delete("1")
	b.want(t, "all in one update", nil, map[string]string{})
	if runs := b.Runs(); runs == 0 {
		t.Error("Runs counts nothing")
	}
}

func TestTables(t *testing.T) {
	b := newBench()
	counts := NewTables[string, *text](&b.Graph)
	watched := NewInput[string, *text](&b.Graph)
	NewRule(b.in, func(r *Reader, key string, out *Output) {
		value, _ := b.in.Get(r, key)
		for word := range strings.FieldsSeq(value.content) {
			Put(out, counts.Of(word), key, value)
		}
	})
	// A later rule reads the tables.
	NewRule(watched, func(r *Reader, key string, out *Output) {
		b.ran = append(b.ran, key)
		Put(out, b.out, key, of(strings.Join(counts.Of(key).Get(r).Names(), " ")))
	})
	watched.Set("red", of(""))
	watched.Set("blue", of(""))
	b.want(t, "no such group", []string{"blue", "red"}, map[string]string{"red": "", "blue": ""})
	b.in.Set("1", of("red"))
	b.in.Set("2", of("red green"))
	b.want(t, "in one update", []string{"red"}, map[string]string{"red": "1 2", "blue": ""})
	if got := contents(counts.Of("green").Current()); !gocmp.Equal(got, map[string]string{"2": "red green"}) {
		t.Errorf("the group green is %v", got)
	}
	b.in.Set("1", of("red"))
	b.in.Set("3", of("green"))
	b.want(t, "another group changes", nil, map[string]string{"red": "1 2", "blue": ""})
	b.in.Set("1", of("blue"))
	b.want(t, "from group to group", []string{"blue", "red"}, map[string]string{"red": "2", "blue": "1"})
	b.in.Delete("1")
	b.in.Set("1", of("blue"))
	b.want(t, "removed and added", nil, map[string]string{"red": "2", "blue": "1"})
	for _, key := range []string{"1", "2", "3"} {
		b.in.Delete(key)
	}
	b.want(t, "all go", []string{"blue", "red"}, map[string]string{"red": "", "blue": ""})
	if len(counts.byKey) != 2 {
		t.Errorf("there are %d tables, and two are read", len(counts.byKey))
	}
	if !counts.Of("green").Current().IsZero() {
		t.Error("a group that nobody puts into has something")
	}
}

// TestRulesRunInOrder checks that a rule sees what earlier rules put in the same update, also
// through a memo.
func TestRulesRunInOrder(t *testing.T) {
	b := newBench()
	stages := make([]*Table[*text], 4)
	for i := range stages {
		stages[i] = NewTable[*text](&b.Graph)
	}
	sizes := NewMemo(&b.Graph, func(r *Reader, stage int) int { return stages[stage].Get(r).Len() })
	for i := range stages {
		NewRule(b.in, func(r *Reader, key string, out *Output) {
			before := 0
			if i > 0 {
				before = sizes.Get(r, i-1)
			}
			Put(out, stages[i], key, of(fmt.Sprint(before)))
			Put(out, stages[i], fmt.Sprint("size ", before), of(""))
		})
	}
	for count := 1; count <= 5; count++ {
		b.in.Set(fmt.Sprint(count), of(""))
		b.Update()
		// Each stage has one entry more than there are keys.
		for i, stage := range stages {
			if got := stage.Current().Len(); got != count+1 {
				t.Errorf("with %d keys stage %d has %d entries: %v", count, i, got, contents(stage.Current()))
			}
		}
	}
}

// TestRuleBeforeItsTable checks that a rule sees what a later rule puts in the next update.
func TestRuleBeforeItsTable(t *testing.T) {
	b := newBench()
	later := NewTable[*text](&b.Graph)
	NewRule(b.in, func(r *Reader, key string, out *Output) {
		Put(out, b.out, key, of(fmt.Sprint(later.Get(r).Len())))
	})
	NewRule(b.in, func(_ *Reader, key string, out *Output) { Put(out, later, key, of("")) })
	b.in.Set("a", of(""))
	b.want(t, "late", nil, map[string]string{"a": "0"})
	b.want(t, "an update after", nil, map[string]string{"a": "1"})
}

// TestReadOften checks that repeated reads are recorded once.
func TestReadOften(t *testing.T) {
	b := newBench()
	NewRule(b.in, func(r *Reader, key string, _ *Output) {
		for range 100 {
			b.in.Get(r, key)
		}
	})
	for _, content := range []string{"1", "2", "3"} {
		b.in.Set("a", of(content))
		b.Update()
		if reads := b.rules[0].(*Rule[string]).cells["a"].reads; len(reads) != 1 {
			t.Errorf("one value was read, and %d are remembered", len(reads))
		}
	}
}

func byLength(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }
