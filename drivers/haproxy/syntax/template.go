package syntax

import (
	"fmt"
	"io/fs"
	"text/template"
	"text/template/parse"
)

// Parse parses a template of configuration. It prints Text and numbers; printing anything
// else, such as a string, ends its execution with an error. In addition to the functions,
// it has
//
//	literal "text"           a Text
//	fill "a {} b" x ...      a Text in which the places are filled with Text and numbers
//
// whose first argument must be a constant.
func Parse(files fs.FS, file string, functions template.FuncMap) (*template.Template, error) {
	t, err := template.New(file).Funcs(template.FuncMap{
		"literal": func(text string) Text { return Text{text} },
		"fill":    fillAny, printer: toText,
	}).Funcs(functions).ParseFS(files, file)
	if err != nil {
		return nil, err
	}
	for _, one := range t.Templates() {
		if err := check(one.Tree, one.Root); err != nil {
			return nil, fmt.Errorf("%s: %w", one.Name(), err)
		}
	}
	return t, nil
}

// printer is the function through which all output of a template goes.
const printer = "printed"

// check adds the printer to everything that is printed below the node, and refuses patterns
// that are not constant.
func check(tree *parse.Tree, node parse.Node) error {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, one := range n.Nodes {
			if err := check(tree, one); err != nil {
				return err
			}
		}
	case *parse.ActionNode:
		if err := checkPipe(n.Pipe); err != nil {
			return err
		}
		if len(n.Pipe.Decl) == 0 {
			name := parse.NewIdentifier(printer).SetTree(tree).SetPos(n.Pos)
			n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{name}})
		}
	case *parse.IfNode:
		return checkBranch(tree, &n.BranchNode)
	case *parse.RangeNode:
		return checkBranch(tree, &n.BranchNode)
	case *parse.WithNode:
		return checkBranch(tree, &n.BranchNode)
	case *parse.TemplateNode:
		return checkPipe(n.Pipe)
	}
	return nil
}

func checkBranch(tree *parse.Tree, n *parse.BranchNode) error {
	if err := checkPipe(n.Pipe); err != nil {
		return err
	}
	if err := check(tree, n.List); err != nil {
		return err
	}
	return check(tree, n.ElseList)
}

func checkPipe(pipe *parse.PipeNode) error {
	if pipe == nil {
		return nil
	}
	for i, command := range pipe.Cmds {
		if name, ok := command.Args[0].(*parse.IdentifierNode); ok && (name.Ident == "literal" || name.Ident == "fill") {
			constant := i == 0 && len(command.Args) > 1
			if constant {
				_, constant = command.Args[1].(*parse.StringNode)
			}
			if !constant {
				return fmt.Errorf("the first argument of %q is no constant", command)
			}
		}
		for _, argument := range command.Args {
			if nested, ok := argument.(*parse.PipeNode); ok {
				if err := checkPipe(nested); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func toText(value any) (Text, error) {
	switch v := value.(type) {
	case Text:
		return v, nil
	case int:
		return Number(v), nil
	case int64:
		return Number(v), nil
	case uint16:
		return Number(v), nil
	case uint32:
		return Number(v), nil
	case uint64:
		return Number(v), nil
	}
	return Text{}, fmt.Errorf("%T is not safe in the configuration", value)
}

func fillAny(pattern string, values ...any) (Text, error) {
	texts := make([]Text, len(values))
	for i, value := range values {
		var err error
		if texts[i], err = toText(value); err != nil {
			return Text{}, err
		}
	}
	return Fill(constant(pattern), texts...), nil
}
