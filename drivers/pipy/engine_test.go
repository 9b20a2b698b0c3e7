package pipy

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dop251/goja"
)

// engine runs the scripts' pure functions without Pipy. It provides the parts of Pipy's API
// that they use: Data, StreamEnd and IPMask.
type engine struct {
	t       *testing.T
	vm      *goja.Runtime
	modules map[string]*goja.Object
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{t: t, vm: goja.New(), modules: map[string]*goja.Object{}}
	e.vm.SetFieldNameMapper(goja.UncapFieldNameMapper())
	e.must(e.vm.Set("bytesOf", e.newBytes))
	e.must(e.vm.Set("textOf", e.textOf))
	_, err := e.vm.RunScript("data", dataClass)
	e.must(err)
	e.must(e.vm.Set("IPMask", e.mask))
	// The tested functions get documents as arguments.
	config := e.vm.NewObject()
	for _, name := range []string{"settings", "inbound", "onChange"} {
		e.must(config.Set(name, func() any { return nil }))
	}
	e.modules["./config.js"] = config
	return e
}

func (e *engine) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// bytesOf returns the bytes of a string, as UTF-8, or of an array of numbers.
func (e *engine) bytesOf(v goja.Value) []byte {
	if text, ok := v.Export().(string); ok {
		return []byte(text)
	}
	var out []byte
	e.must(e.vm.ExportTo(v, &out))
	return out
}

// dataClass is the part of Pipy's Data and StreamEnd that the scripts' pure functions use.
const dataClass = `
function Data(content, encoding) {
  this.bytes = content === undefined ? [] : content instanceof Data ? content.bytes.slice() : bytesOf(content, encoding)
}
Object.defineProperty(Data.prototype, 'size', { get: function () { return this.bytes.length } })
Data.prototype.push = function (more) {
  this.bytes = this.bytes.concat(more instanceof Data ? more.bytes : bytesOf(more))
  return this
}
Data.prototype.shift = function (n) {
  var first = new Data
  first.bytes = this.bytes.splice(0, n)
  return first
}
Data.prototype.pop = function (n) {
  var last = new Data
  last.bytes = this.bytes.splice(Math.max(0, this.bytes.length - n), n)
  return last
}
Data.prototype.shiftTo = function (ends) {
  var at = this.bytes.findIndex(c => ends(c))
  return this.shift(at < 0 ? this.bytes.length : at + 1)
}
Data.prototype.toArray = function () { return this.bytes.slice() }
Data.prototype.toString = function () { return textOf(this.bytes) }
function StreamEnd() {}
`

// newBytes returns the bytes of a new Data.
func (e *engine) newBytes(content goja.Value, encoding goja.Value) goja.Value {
	list := e.bytesOf(content)
	if encoding != nil && encoding.String() == "base64" {
		var err error
		list, err = base64.StdEncoding.DecodeString(string(list))
		e.must(err)
	}
	numbers := make([]any, len(list))
	for i, b := range list {
		numbers[i] = int64(b)
	}
	return e.vm.NewArray(numbers...)
}

// textOf returns the text of bytes, or undefined if they are not valid UTF-8.
func (e *engine) textOf(list goja.Value) goja.Value {
	content := e.bytesOf(list)
	if !utf8.Valid(content) {
		return goja.Undefined()
	}
	return e.vm.ToValue(string(content))
}

func (e *engine) mask(call goja.ConstructorCall) *goja.Object {
	prefix, err := netip.ParsePrefix(call.Argument(0).String())
	e.must(err)
	e.must(call.This.Set("contains", func(address string) bool {
		addr, err := netip.ParseAddr(address)
		return err == nil && prefix.Contains(addr.Unmap())
	}))
	return nil
}

var (
	importLine = regexp.MustCompile(`(?m)^import (\{[^}]*\}) from '([^']+)'$`)
	exportWord = regexp.MustCompile(`(?m)^export (function|var) (\w+)`)
)

// module returns the exports of a script of the codebase.
func (e *engine) module(name string) *goja.Object {
	e.t.Helper()
	if found := e.modules[name]; found != nil {
		return found
	}
	content, err := codebase.ReadFile(path.Join("codebase", name))
	e.must(err)
	text := string(content)
	for _, found := range importLine.FindAllStringSubmatch(text, -1) {
		e.module(found[2])
	}
	text = importLine.ReplaceAllString(text, "var $1 = modules['$2']")
	var exports []string
	for _, found := range exportWord.FindAllStringSubmatch(text, -1) {
		exports = append(exports, found[2])
	}
	text = exportWord.ReplaceAllString(text, "$1 $2")
	e.must(e.vm.Set("modules", e.modules))
	value, err := e.vm.RunScript(name, fmt.Sprintf("(function() {%s\nreturn {%s}\n})()", text, strings.Join(exports, ", ")))
	e.must(err)
	e.modules[name] = value.ToObject(e.vm)
	return e.modules[name]
}

// call calls a function of a script with arguments in their JSON form.
func (e *engine) call(module, function string, arguments ...any) goja.Value {
	e.t.Helper()
	f, ok := goja.AssertFunction(e.module(module).Get(function))
	if !ok {
		e.t.Fatalf("%s exports no function %s", module, function)
	}
	values := make([]goja.Value, len(arguments))
	for i, argument := range arguments {
		if values[i], ok = argument.(goja.Value); !ok {
			values[i] = e.value(argument)
		}
	}
	result, err := f(goja.Undefined(), values...)
	e.must(err)
	return result
}

func (e *engine) value(v any) goja.Value {
	content, err := json.Marshal(v)
	e.must(err)
	parse, _ := goja.AssertFunction(e.vm.Get("JSON").ToObject(e.vm).Get("parse"))
	value, err := parse(goja.Undefined(), e.vm.ToValue(string(content)))
	e.must(err)
	return value
}
