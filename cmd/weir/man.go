package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// manCommand prints the manual page.
type manCommand struct{}

const manTail = `.SH EXIT STATUS
.TP
0
it is done
.TP
1
it failed, or what was to be checked is not in order
.TP
2
the command line is wrong
.SH ENVIRONMENT
.TP
.B ` + tokenVariable + `
The token of the admin listener, for the commands that ask it.
.TP
.B WEIR_WEBHOOK_SECRET
What the reference service signs its deliveries with.
.TP
.B OTEL_*
Where traces, metrics and logs are sent; nowhere without them.
.PP
What a configuration names as ${NAME} comes from the environment, too.
.SH SIGNALS
.TP
.B SIGHUP
.B weir serve
reads its configuration anew, as it does when the file changes.
.TP
.BR SIGTERM ", " SIGINT
It answers the requests that are in flight, for ten seconds at most, and ends.
`

// Run prints it, made from the commands as they are. It has no date, so that the same
// program always makes the same page.
func (*manCommand) Run(p *process, parsed *kong.Context) error {
	root := parsed.Model.Node
	p.printf(".TH WEIR 1 \"\" %s\n.SH NAME\nweir \\- %s\n", roff(fmt.Sprintf("%q", "weir "+version())), roff(strings.TrimSuffix(lowered(root.Help), ".")))
	leaves := root.Leaves(true)
	var called []string
	for _, n := range leaves {
		called = append(called, synopsis(n))
	}
	p.printf(".SH SYNOPSIS\n%s\n.SH COMMANDS\n", strings.Join(called, "\n.br\n"))
	for _, n := range leaves {
		p.printf(".SS %s\n%s\n", roff(path(n)), roff(n.Help))
		for _, v := range n.Positional {
			p.printf(".TP\n.I %s\n%s\n", roff(strings.ToUpper(v.Name)), roff(v.Help))
		}
		for _, f := range flags(n) {
			if f.Name != "help" {
				p.printf(".TP\n%s\n%s\n", signature(f), roff(f.Help)+byDefault(f))
			}
		}
	}
	p.printf("%s", manTail)
	return nil
}

// synopsis is a line that says how a command is called.
func synopsis(n *kong.Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\\fB%s\\fR", roff(path(n)))
	if len(flags(n)) > 1 { // more than --help
		b.WriteString(" [\\fIFLAG\\fR ...]")
	}
	for _, v := range n.Positional {
		form := " \\fI%s\\fR"
		if !v.Required {
			form = " [\\fI%s\\fR]"
		}
		fmt.Fprintf(&b, form, roff(strings.ToUpper(v.Name)))
	}
	return b.String()
}

func signature(f *kong.Flag) string {
	if f.IsBool() {
		return fmt.Sprintf("\\fB%s\\fR", roff("--"+f.Name))
	}
	value := cmp.Or(f.PlaceHolder, strings.Join(choices(f.Value), "|"), "VALUE")
	return fmt.Sprintf("\\fB%s\\fR=\\fI%s\\fR", roff("--"+f.Name), roff(value))
}

func byDefault(f *kong.Flag) string {
	if !f.HasDefault || f.IsBool() {
		return ""
	}
	return " Without it: " + roff(f.Default) + "."
}

func lowered(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// roff hides from the formatter what it would take for its own.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
