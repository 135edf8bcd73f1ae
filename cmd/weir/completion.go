package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand prints what a shell needs to complete the command line.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints it, made from the commands as they are.
func (c *completionCommand) Run(p *process, parsed *kong.Context) error {
	scripts := map[string]func([]*kong.Node) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	p.printf("%s", scripts[c.Shell](nodes(parsed.Model.Node)))
	return nil
}

// nodes are a node and all below it, each before its children.
func nodes(n *kong.Node) []*kong.Node {
	all := []*kong.Node{n}
	for _, child := range n.Children {
		all = append(all, nodes(child)...)
	}
	return all
}

// flags are those that a node takes: its own, and --help.
func flags(n *kong.Node) (all []*kong.Flag) {
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if len(f.Name) > 0 && (n.Parent == nil || f.Name != "version") {
				all = append(all, f)
			}
		}
	}
	return all
}

// choices are the values that there are to choose from.
func choices(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}

// isFile reports whether a value names a file: by its place in the command line, or
// by what stands for it in the help.
func isFile(v *kong.Value) bool {
	return cmp.Or(placeholder(v), strings.ToUpper(v.Name)) == "FILE"
}

func placeholder(v *kong.Value) string {
	if v.Flag == nil {
		return ""
	}
	return v.Flag.PlaceHolder
}

// words are what may stand next, apart from flags: commands below, or the choices of
// the first argument.
func words(n *kong.Node) (all []string) {
	for _, child := range n.Children {
		all = append(all, child.Name)
	}
	if len(n.Positional) > 0 {
		all = append(all, choices(n.Positional[0])...)
	}
	return all
}

// path is how a node is called: "weir cache purge".
func path(n *kong.Node) string {
	if n.Parent == nil {
		return n.Name
	}
	return path(n.Parent) + " " + n.Name
}

// Where the function has no answer bash completes the name of a file. In COMP_WORDS "="
// is a word of its own.
const (
	bashHead = `# bash completion for weir: source <(weir completion bash)
_weir() {
	local cur=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD-1]} path=weir words="" flags="" i
	if [[ $cur == "=" ]]; then
		cur=""
	elif [[ $flag == "=" ]]; then
		flag=${COMP_WORDS[COMP_CWORD-2]}
	fi
	for ((i = 1; i < COMP_CWORD; i++)); do
		case "$path ${COMP_WORDS[i]}" in
		%s) path="$path ${COMP_WORDS[i]}" ;;
		esac
	done
	case "$path $flag" in
%s	esac
	case $path in
%s	esac
	[[ $cur != -* ]] || words=$flags
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _weir weir
`
	bashValue = "\t%q) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n"
	bashNode  = "\t%q) words=%q flags=%q ;;\n"
)

// bashCompletion answers by two tables: of the values of flags, and of what may follow
// a command. Flags are told where nothing else is, or when one is begun.
func bashCompletion(all []*kong.Node) string {
	var paths []string
	var values, follow strings.Builder
	for _, n := range all {
		if n.Parent != nil {
			paths = append(paths, fmt.Sprintf("%q", path(n)))
		}
		var own []string
		for _, f := range flags(n) {
			own = append(own, "--"+f.Name)
			if !f.IsBool() {
				fmt.Fprintf(&values, bashValue, path(n)+" --"+f.Name, strings.Join(choices(f.Value), " "))
			}
		}
		next := words(n)
		if len(next) == 0 && len(n.Positional) == 0 {
			next = own
		}
		fmt.Fprintf(&follow, bashNode, path(n), strings.Join(next, " "), strings.Join(own, " "))
	}
	return fmt.Sprintf(bashHead, strings.Join(paths, " | "), values.String(), follow.String())
}

// zshCompletion has a function for each node, which hands on to those below.
func zshCompletion(all []*kong.Node) string {
	var b strings.Builder
	b.WriteString("#compdef weir\n# zsh completion for weir: weir completion zsh >DIRECTORY/_weir, DIRECTORY one of $fpath\n")
	for _, n := range all {
		fmt.Fprintf(&b, "\n%s() {\n\tlocal context state state_descr line\n\tlocal -A opt_args\n\t_arguments -C", zshName(n))
		for _, f := range flags(n) {
			spec := "--" + f.Name + "[" + zshEscape(f.Help) + "]"
			if !f.IsBool() {
				spec = "--" + f.Name + "=[" + zshEscape(f.Help) + "]:" + cmp.Or(zshEscape(f.PlaceHolder), f.Name) + ":" + zshAction(f.Value)
			}
			fmt.Fprintf(&b, " \\\n\t\t%s", shellQuote(spec))
		}
		for i, v := range n.Positional {
			fmt.Fprintf(&b, " \\\n\t\t%s", shellQuote(fmt.Sprintf("%d:%s:%s", i+1, v.Name, zshAction(v))))
		}
		if len(n.Children) > 0 {
			b.WriteString(" \\\n\t\t'1: :->command' '*:: :->rest'\n\tcase $state in\n\tcommand) local -a commands=(")
			for _, child := range n.Children {
				fmt.Fprintf(&b, "\n\t\t%s", shellQuote(child.Name+":"+strings.ReplaceAll(child.Help, ":", `\:`)))
			}
			b.WriteString("\n\t\t); _describe command commands ;;\n\trest) case $line[1] in\n")
			for _, child := range n.Children {
				fmt.Fprintf(&b, "\t\t%s) %s ;;\n", child.Name, zshName(child))
			}
			b.WriteString("\t\tesac ;;\n\tesac")
		}
		b.WriteString("\n}\n")
	}
	b.WriteString("\nif [[ $funcstack[1] == _weir ]]; then _weir \"$@\"; else compdef _weir weir; fi\n")
	return b.String()
}

func zshName(n *kong.Node) string { return "_" + strings.ReplaceAll(path(n), " ", "_") }

func zshAction(v *kong.Value) string {
	switch {
	case isFile(v):
		return "_files"
	case len(choices(v)) > 0:
		return "(" + strings.Join(choices(v), " ") + ")"
	}
	return " "
}

// zshEscape hides what _arguments reads as the end of a description.
func zshEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(s)
}

// shellQuote makes a text one word of every shell here, fish too, which reads \' and
// \\ within quotes: the texts have no backslash beside those of zshEscape.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// fishCompletion is a line for each word that may stand somewhere.
func fishCompletion(all []*kong.Node) string {
	var b strings.Builder
	b.WriteString("# fish completion for weir: weir completion fish | source\ncomplete -c weir -f\n")
	for _, n := range all {
		here := fishCondition(n)
		for _, child := range n.Children {
			fmt.Fprintf(&b, "complete -c weir -n %s -a %s -d %s\n", here, child.Name, shellQuote(child.Help))
		}
		for _, v := range n.Positional {
			switch {
			case isFile(v):
				fmt.Fprintf(&b, "complete -c weir -n %s -F\n", here)
			case len(choices(v)) > 0:
				fmt.Fprintf(&b, "complete -c weir -n %s -a %s\n", here, shellQuote(strings.Join(choices(v), " ")))
			}
		}
		for _, f := range flags(n) {
			value := ""
			switch {
			case f.IsBool():
			case isFile(f.Value):
				value = " -r -F"
			case len(choices(f.Value)) > 0:
				value = " -x -a " + shellQuote(strings.Join(choices(f.Value), " "))
			default:
				value = " -x"
			}
			fmt.Fprintf(&b, "complete -c weir -n %s -l %s%s -d %s\n", here, f.Name, value, shellQuote(f.Help))
		}
	}
	return b.String()
}

// fishCondition holds where a node's own words may stand: the names above it were
// given, and none below it.
func fishCondition(n *kong.Node) string {
	var conditions []string
	for at := n; at.Parent != nil; at = at.Parent {
		conditions = append(conditions, "__fish_seen_subcommand_from "+at.Name)
	}
	slices.Reverse(conditions)
	if len(n.Children) > 0 {
		var below []string
		for _, child := range n.Children {
			below = append(below, child.Name)
		}
		conditions = append(conditions, "not __fish_seen_subcommand_from "+strings.Join(below, " "))
	}
	return shellQuote(strings.Join(conditions, "; and "))
}
