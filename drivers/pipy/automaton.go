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

// automaton is a deterministic automaton, as a table, for an RE2 expression that must
// match the whole string: a script runs it in time linear in the string's length. Pipy's
// own expressions are another dialect, and some of them never end or exhaust the stack.
type automaton struct {
	// Starts are the first characters of the ranges, ascending from 0, and Classes the
	// equivalence class of each range. The table does not distinguish characters of one
	// class.
	Starts  []rune `json:"starts"`
	Classes []int  `json:"classes"`
	// Width is the number of classes.
	Width int `json:"width"`
	// Next has Width entries for each state: the state after a character of that class,
	// or -1 if the string can no longer match. The first state is 0.
	Next []int `json:"next"`
	// Accept is 1 for each state in which a string that ends there matches.
	Accept []int `json:"accept"`
}

// Bounds of an automaton and of the work to build it: entries of the table, character
// tests to find the classes, and instructions visited to find the states.
const (
	maxEntries = 1 << 16
	maxTests   = 1 << 22
	maxSteps   = 1 << 23
)

// errTooLarge is returned for a valid expression that exceeds these bounds.
var errTooLarge = errors.New("the expression has too many states")

// newAutomaton returns the automaton of an expression, and how many character tests and
// instructions it took to build it, or to find that it is too large.
func newAutomaton(expression string) (*automaton, int, error) {
	// Only Compile bounds the size of repetitions.
	if _, err := regexp.Compile(expression); err != nil {
		return nil, 0, err
	}
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil, 0, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, 0, err
	}
	b := automatonBuilder{prog: prog, numbers: make(map[string]int)}
	b.looksAround = slices.ContainsFunc(prog.Inst, func(inst syntax.Inst) bool { return inst.Op == syntax.InstEmptyWidth })
	if err := b.classify(); err != nil {
		return nil, b.work, fmt.Errorf("%q: %w", expression, err)
	}
	if err := b.build(); err != nil {
		return nil, b.work, fmt.Errorf("%q: %w", expression, err)
	}
	return &b.result, b.work, nil
}

// automatonBuilder converts a program into an automaton by the subset construction.
type automatonBuilder struct {
	prog *syntax.Prog
	// looksAround says that the program has assertions, such as \b or ^, about the
	// characters around a position.
	looksAround bool
	// examples has one character of each class.
	examples []rune
	// numbers are the indices in states, by key.
	numbers map[string]int
	states  []state
	result  automaton
	// work is how many character tests and instructions it has taken.
	work int
}

// state is a state of the automaton: the sorted instructions that are active, before
// those that read no character are followed, and the kind of the character before the
// position, -1 at the beginning.
type state struct {
	insts  []uint32
	before rune
}

// classify divides all characters into classes that no instruction distinguishes.
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
	if len(starts)*len(readers) > maxTests {
		return errTooLarge
	}
	b.work = len(starts) * len(readers)
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
		if n := len(b.result.Classes); n == 0 || b.result.Classes[n-1] != class {
			b.result.Starts, b.result.Classes = append(b.result.Starts, r), append(b.result.Classes, class)
		}
	}
	b.result.Width = len(classes)
	return nil
}

// boundaries returns the first character of each range of an instruction, and the first
// one after it.
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

// kind returns the character that represents r in assertions.
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
	b.number(state{insts: []uint32{uint32(b.prog.Start)}, before: -1})
	steps := 0
	for i := 0; i < len(b.states); i++ {
		from := b.states[i]
		steps += (b.result.Width + 1) * len(b.prog.Inst)
		b.work += (b.result.Width + 1) * len(b.prog.Inst)
		if steps > maxSteps {
			return errTooLarge
		}
		b.result.Accept = append(b.result.Accept, 0)
		if b.follow(from, -1, func(uint32) {}) {
			b.result.Accept[i] = 1
		}
		for _, r := range b.examples {
			var next []uint32
			b.follow(from, r, func(pc uint32) { next = append(next, pc) })
			if len(next) == 0 {
				b.result.Next = append(b.result.Next, -1)
				continue
			}
			slices.Sort(next)
			b.result.Next = append(b.result.Next, b.number(state{insts: slices.Compact(next), before: b.kind(r)}))
		}
		if len(b.states)*b.result.Width > maxEntries {
			return errTooLarge
		}
	}
	return nil
}

// number returns the index of the state, which it adds if it is new.
func (b *automatonBuilder) number(s state) int {
	bytes := binary.LittleEndian.AppendUint32(make([]byte, 0, 4*(len(s.insts)+1)), uint32(s.before))
	for _, inst := range s.insts {
		bytes = binary.LittleEndian.AppendUint32(bytes, inst)
	}
	key := string(bytes)
	number, known := b.numbers[key]
	if !known {
		number = len(b.states)
		b.numbers[key] = number
		b.states = append(b.states, s)
	}
	return number
}

// follow reads the character r in the state, or the end of the string if r is -1: it
// follows the instructions that read nothing, and calls reached with each instruction
// after one that reads r. It returns whether the string may end before r.
func (b *automatonBuilder) follow(start state, r rune, reached func(pc uint32)) bool {
	around := syntax.EmptyOpContext(start.before, r)
	seen := make([]bool, len(b.prog.Inst))
	todo := slices.Clone(start.insts)
	matched := false
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
			matched = true
		case syntax.InstFail:
		default:
			if r >= 0 && inst.MatchRune(r) {
				reached(inst.Out)
			}
		}
	}
	return matched
}
