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
success
.TP
1
the command failed, or the check found a problem
.TP
2
the command line is invalid
.SH ENVIRONMENT
.TP
.B ` + tokenVariable + `
Token of the admin listener, for the commands that connect to it.
.TP
.B WEIR_WEBHOOK_SECRET
Secret that signs the webhook deliveries of the reference service.
.TP
.B OTEL_*
Exporters of traces, metrics and logs. Without these variables nothing is exported.
.PP
The configuration can refer to any other variable as ${NAME}.
.SH SIGNALS
.TP
.B SIGHUP
.B weir serve
reloads its configuration, as it does when the file changes.
.TP
.BR SIGTERM ", " SIGINT
The gateway completes the requests in progress, for at most
.BR drain.timeout ,
and exits. A second signal ends the process immediately.
`

// Run renders the page from the command line's definition.
func (*manCommand) Run(p *process, parsed *kong.Context) error {
	root := parsed.Model.Node
	summary := strings.TrimSuffix(strings.ToLower(root.Help[:1])+root.Help[1:], ".")
	p.printf(".TH WEIR 1 \"\" %s\n.SH NAME\nweir \\- %s\n.SH SYNOPSIS\n", roff(fmt.Sprintf("%q", "weir "+version())), roff(summary))
	leaves := root.Leaves(true)
	for i, n := range leaves {
		if i > 0 {
			p.printf(".br\n")
		}
		p.printf("\\fB%s\\fR", roff(n.FullPath()))
		if len(flags(n)) > 1 { // flags other than --help
			p.printf(" [\\fIFLAG\\fR ...]")
		}
		for _, v := range n.Positional {
			form := " \\fI%s\\fR"
			if !v.Required {
				form = " [\\fI%s\\fR]"
			}
			p.printf(form, roff(strings.ToUpper(v.Name)))
		}
		p.printf("\n")
	}
	p.printf(".SH COMMANDS\n")
	for _, n := range leaves {
		p.printf(".SS %s\n%s\n", roff(n.FullPath()), roff(n.Help))
		for _, v := range n.Positional {
			p.printf(".TP\n.I %s\n%s\n", roff(strings.ToUpper(v.Name)), roff(v.Help))
		}
		for _, f := range flags(n) {
			if f.Name == "help" {
				continue
			}
			p.printf(".TP\n\\fB%s\\fR", roff("--"+f.Name))
			if !f.IsBool() {
				p.printf("=\\fI%s\\fR", roff(cmp.Or(f.PlaceHolder, strings.Join(f.EnumSlice(), "|"), "VALUE")))
			}
			p.printf("\n%s", roff(f.Help))
			if f.HasDefault && !f.IsBool() {
				p.printf(" Default: %s.", roff(f.Default))
			}
			p.printf("\n")
		}
	}
	p.printf("%s", manTail)
	return nil
}

// roff escapes a text for the formatter.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
