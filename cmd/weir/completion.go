package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand prints a script that completes the command line in a shell.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// completionScripts run "weir __complete WORD ..." and read the candidates from its output.
// If the command fails, the shell completes file names instead.
var completionScripts = map[string]string{
	// Bash passes "=" as a separate word. Without a candidate, Bash completes file names (-o default).
	"bash": `# bash completion for weir: source <(weir completion bash)
_weir() {
	COMPREPLY=($(command weir __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _weir weir
`,
	"zsh": `#compdef weir
# zsh completion for weir: weir completion zsh >DIRECTORY/_weir, DIRECTORY one of $fpath
_weir() {
	local output
	local -a candidates
	output=$(command weir __complete "${(@)words[2,CURRENT]}" 2>/dev/null) || { compset -P '--*='; _files; return }
	[[ -n $output ]] || return
	candidates=("${(@f)output}")
	candidates=("${(@)candidates/$'\t'/:}")
	_describe weir candidates
}
if [[ $funcstack[1] == _weir ]]; then _weir "$@"; else compdef _weir weir; fi
`,
	"fish": `# fish completion for weir: weir completion fish | source
function __weir_complete
	set -l words (commandline -opc) (commandline -ct)
	command weir __complete $words[2..] 2>/dev/null; or __fish_complete_path (commandline -ct)
end
complete -c weir -f -a '(__weir_complete)'
`,
}

// Run prints the script.
func (c *completionCommand) Run(p *process) error {
	p.printf("%s", completionScripts[c.Shell])
	return nil
}

// completeCommand prints the candidates for the last word of a command line. Each line is a word, or a word, a tab and
// a description. If a file name is expected, the command fails.
type completeCommand struct {
	Words []string `arg:"" optional:""`
}

// Run finds the command and the flag that the words before the last word name.
func (c *completeCommand) Run(p *process, parsed *kong.Context) error {
	words := append([]string{""}, c.Words...) // never empty; an empty word has no meaning before the last word
	last := words[len(words)-1]
	node := parsed.Model.Node
	var flag *kong.Flag // the flag whose value is the next word
	for _, word := range words[:len(words)-1] {
		child := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word })
		switch {
		case word == "=":
		case flag != nil:
			flag = nil
		case strings.HasPrefix(word, "-"):
			flag = valueFlag(node, word)
		case child >= 0:
			node = node.Children[child]
		}
	}
	prefix := ""
	if name, value, ok := strings.Cut(last, "="); ok {
		if last = value; name != "" {
			flag, prefix = valueFlag(node, name), name+"="
		}
	}
	suggest := func(word, description string) {
		if word != "" && strings.HasPrefix(word, last) {
			p.printf("%s\n", strings.TrimSuffix(prefix+word+"\t"+description, "\t"))
		}
	}
	takesFile := flag == nil && !strings.HasPrefix(last, "-") && len(node.Positional) > 0 && isFile(node.Positional[0])
	switch {
	case takesFile, flag != nil && isFile(flag.Value):
		return &exit{exitFailure, ""}
	case flag != nil:
		for _, value := range flag.EnumSlice() {
			suggest(value, flag.Help)
		}
	case strings.HasPrefix(last, "-"), len(node.Children)+len(node.Positional) == 0:
		for _, f := range flags(node) {
			suggest("--"+f.Name, f.Help)
		}
	case len(node.Positional) > 0:
		for _, value := range node.Positional[0].EnumSlice() {
			suggest(value, "")
		}
	}
	if flag == nil {
		for _, child := range node.Children {
			if !child.Hidden {
				suggest(child.Name, child.Help)
			}
		}
	}
	return nil
}

// valueFlag returns the flag that is written as word, or nil if no such flag takes a value.
func valueFlag(n *kong.Node, word string) *kong.Flag {
	for _, f := range flags(n) {
		if "--"+f.Name == word && !f.IsBool() {
			return f
		}
	}
	return nil
}

// flags returns the flags of a command or of its default command, and --help. Only the program has --version.
func flags(n *kong.Node) (all []*kong.Flag) {
	if n.DefaultCmd != nil {
		n = n.DefaultCmd
	}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if n.Parent == nil || f.Name != "version" {
				all = append(all, f)
			}
		}
	}
	return all
}

// isFile reports whether a flag or an argument takes the name of a file.
func isFile(v *kong.Value) bool {
	placeholder := ""
	if v.Flag != nil {
		placeholder = v.Flag.PlaceHolder
	}
	return cmp.Or(placeholder, strings.ToUpper(v.Name)) == "FILE"
}
