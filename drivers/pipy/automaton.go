package pipy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode"
)

// automaton is an RE2 expression that a whole string must match, as a table: a script
// walks it in a time that only the string's length decides. Pipy's own expressions are
// another language, and some of them take it forever, or all of its stack.
type automaton struct {
	// Starts are the characters where ranges begin, ascending, the first of them 0, and
	// Classes the class of each range. Characters of a class are never told apart.
	Starts  []rune `json:"starts"`
	Classes []int  `json:"classes"`
	// Width is the number of classes.
	Width int `json:"width"`
	// Next has Width entries for each state, the state after a character of that class;
	// -1 means that the string does not match, whatever follows. The first state is 0.
	Next []int `json:"next"`
	// Accept says, for each state, with 1 that a string that ends there matches.
	Accept []int `json:"accept"`
}

// How large an automaton gets, and how much work it may be: entries of its table, tests
// of characters to find the classes, and instructions that are looked at to find states.
const (
	mostEntries = 1 << 16
	mostTests   = 1 << 22
	mostSteps   = 1 << 25
)

// errTooLarge says that an expression is one but takes too large a table.
var errTooLarge = errors.New("the expression has too many states")

// newAutomaton returns the automaton of an expression.
func newAutomaton(expression string) (*automaton, error) {
	// This one bounds the size of what is repeated.
	if _, err := regexp.Compile(expression); err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	b := automatonBuilder{prog: prog, states: make(map[string]int)}
	for i := range prog.Inst {
		b.looksAround = b.looksAround || prog.Inst[i].Op == syntax.InstEmptyWidth
	}
	if err := b.classify(); err != nil {
		return nil, fmt.Errorf("%q: %w", expression, err)
	}
	if err := b.build(); err != nil {
		return nil, fmt.Errorf("%q: %w", expression, err)
	}
	return &b.made, nil
}

// automatonBuilder makes an automaton by following all ways through a program at a
// time.
type automatonBuilder struct {
	prog *syntax.Prog
	// looksAround says that the program asks what stands before and after a place.
	looksAround bool
	// examples has a character of each class.
	examples []rune
	// states are the numbers of the states, and places what they are.
	states map[string]int
	places []place
	made   automaton
}

// place is where one can be in the program: the instructions, sorted, from which one
// has not gone on yet, and the character that was read, of which only counts what the
// program could ask for; -1 is none.
type place struct {
	insts  []uint32
	before rune
}

// classify divides all characters into classes that no instruction tells apart.
func (b *automatonBuilder) classify() error {
	starts := []rune{0}
	if b.looksAround {
		starts = append(starts, '\n', '0', 'A', '_', 'a')
		starts = append(starts, '\n'+1, '9'+1, 'Z'+1, '_'+1, 'z'+1)
	}
	var readers []*syntax.Inst
	for i := range b.prog.Inst {
		inst := &b.prog.Inst[i]
		switch inst.Op {
		case syntax.InstRuneAnyNotNL:
			starts = append(starts, '\n', '\n'+1)
		case syntax.InstRune, syntax.InstRune1:
			starts = append(starts, boundaries(inst)...)
		case syntax.InstRuneAny:
		default:
			continue
		}
		readers = append(readers, inst)
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	if len(starts)*len(readers) > mostTests {
		return errTooLarge
	}
	classes := make(map[string]int)
	signature := make([]byte, len(readers)+1)
	for _, r := range starts {
		if r > unicode.MaxRune {
			break
		}
		for i, inst := range readers {
			signature[i] = '-'
			if inst.MatchRune(r) {
				signature[i] = '+'
			}
		}
		signature[len(readers)] = byte(b.kind(r))
		class, known := classes[string(signature)]
		if !known {
			class = len(classes)
			classes[string(signature)] = class
			b.examples = append(b.examples, r)
		}
		if n := len(b.made.Classes); n == 0 || b.made.Classes[n-1] != class {
			b.made.Starts, b.made.Classes = append(b.made.Starts, r), append(b.made.Classes, class)
		}
	}
	b.made.Width = len(classes)
	return nil
}

// boundaries returns where the ranges of an instruction begin and where they have
// ended.
func boundaries(inst *syntax.Inst) []rune {
	var out []rune
	if len(inst.Rune) == 1 {
		first := inst.Rune[0]
		out = append(out, first, first+1)
		if syntax.Flags(inst.Arg)&syntax.FoldCase != 0 {
			for r := unicode.SimpleFold(first); r != first; r = unicode.SimpleFold(r) {
				out = append(out, r, r+1)
			}
		}
		return out
	}
	for i := 0; i+1 < len(inst.Rune); i += 2 {
		out = append(out, inst.Rune[i], inst.Rune[i+1]+1)
	}
	return out
}

// kind returns a character that stands for r where a program asks what is beside a
// place.
func (b *automatonBuilder) kind(r rune) rune {
	switch {
	case !b.looksAround:
		return ' '
	case r == '\n':
		return '\n'
	case syntax.IsWordChar(r):
		return 'a'
	}
	return ' '
}

func (b *automatonBuilder) build() error {
	b.state(place{insts: []uint32{uint32(b.prog.Start)}, before: -1})
	steps := 0
	for at := 0; at < len(b.places); at++ {
		from := b.places[at]
		steps += (b.made.Width + 1) * len(b.prog.Inst)
		if steps > mostSteps {
			return errTooLarge
		}
		b.made.Accept = append(b.made.Accept, 0)
		if b.follow(from, -1, func(uint32) {}) {
			b.made.Accept[at] = 1
		}
		for _, r := range b.examples {
			var next []uint32
			b.follow(from, r, func(pc uint32) { next = append(next, pc) })
			if len(next) == 0 {
				b.made.Next = append(b.made.Next, -1)
				continue
			}
			slices.Sort(next)
			b.made.Next = append(b.made.Next, b.state(place{insts: slices.Compact(next), before: b.kind(r)}))
		}
		if len(b.places)*b.made.Width > mostEntries {
			return errTooLarge
		}
	}
	return nil
}

// state returns the number of the place.
func (b *automatonBuilder) state(p place) int {
	bytes := binary.LittleEndian.AppendUint32(make([]byte, 0, 4*(len(p.insts)+1)), uint32(p.before))
	for _, inst := range p.insts {
		bytes = binary.LittleEndian.AppendUint32(bytes, inst)
	}
	key := string(bytes)
	number, known := b.states[key]
	if !known {
		number = len(b.places)
		b.states[key] = number
		b.places = append(b.places, p)
	}
	return number
}

// follow goes on from the place as far as that takes no character, where r is the
// next one and -1 means that there is none, and then reads it: reached is called with
// each instruction after. It returns whether the program can end before r.
func (b *automatonBuilder) follow(from place, r rune, reached func(pc uint32)) bool {
	around := syntax.EmptyOpContext(from.before, r)
	seen := make([]bool, len(b.prog.Inst))
	todo := slices.Clone(from.insts)
	ends := false
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[pc] {
			continue
		}
		seen[pc] = true
		switch inst := &b.prog.Inst[pc]; inst.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			todo = append(todo, inst.Out, inst.Arg)
		case syntax.InstCapture, syntax.InstNop:
			todo = append(todo, inst.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(inst.Arg)&^around == 0 {
				todo = append(todo, inst.Out)
			}
		case syntax.InstMatch:
			ends = true
		case syntax.InstFail:
		default:
			if r >= 0 && inst.MatchRune(r) {
				reached(inst.Out)
			}
		}
	}
	return ends
}
