package house

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// otherServers are the packages that answer requests which are not a client's
// of the gateway, with the reason why their errors are their own.
var otherServers = map[string]string{
	"internal/service": "is the upstream: its errors are what the gateway passes on",
	"internal/admin":   "answers operators on a listener of its own, in plain text",
}

// refusals is the file of the gateway that writes error bodies.
const refusals = "proxy/refuse.go"

// errorWriters are the functions of net/http that write or promise an error
// body of their own.
var errorWriters = []string{"Error", "NotFound", "NotFoundHandler", "TimeoutHandler"}

// successes are the names of the status codes below 400.
var successes = strings.Fields(`StatusContinue StatusSwitchingProtocols StatusProcessing StatusEarlyHints
	StatusOK StatusCreated StatusAccepted StatusNonAuthoritativeInfo StatusNoContent StatusResetContent
	StatusPartialContent StatusMultiStatus StatusAlreadyReported StatusIMUsed
	StatusMultipleChoices StatusMovedPermanently StatusFound StatusSeeOther StatusNotModified StatusUseProxy
	StatusTemporaryRedirect StatusPermanentRedirect`)

// oneErrorWriter finds error answers that are written elsewhere: the helpers
// of net/http, WriteHeader or a made-up response with a constant status of 400
// and more, and a literal body with a message. A status held in a variable it
// can't judge; that is how a reply passes the upstream's on.
func oneErrorWriter(m *module) []finding {
	var findings []finding
	for _, f := range m.files(production) {
		if f.path == refusals || otherServers[f.pkg.dir] != "" {
			continue
		}
		imports := f.importNames()
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if what := writesError(n, imports); what != "" {
				findings = append(findings, finding{f.path, what + "; return an error, " + refusals + " writes it"})
			}
			return true
		})
	}
	return findings
}

// writesError says how the node writes an error, or nothing.
func writesError(n ast.Node, imports map[string]string) string {
	switch n := n.(type) {
	case *ast.CallExpr:
		if path, name := selected(n.Fun, imports); path == "net/http" && slices.Contains(errorWriters, name) {
			return "calls http." + name
		}
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if ok && sel.Sel.Name == "WriteHeader" && len(n.Args) == 1 && errorStatus(n.Args[0], imports) {
			return "writes the header of an error"
		}
	case *ast.KeyValueExpr:
		if identName(n.Key) == "StatusCode" && errorStatus(n.Value, imports) {
			return "makes up the response of an error"
		}
	case *ast.BasicLit:
		if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && strings.Contains(strings.ReplaceAll(text, " ", ""), `{"message":`) {
			return "holds the body of an error"
		}
	}
	return ""
}

// errorStatus reports whether the expression is a constant of 400 or more.
func errorStatus(e ast.Expr, imports map[string]string) bool {
	if lit, ok := e.(*ast.BasicLit); ok {
		status, err := strconv.Atoi(lit.Value)
		return err == nil && status >= 400
	}
	path, name := selected(e, imports)
	return path == "net/http" && strings.HasPrefix(name, "Status") && !slices.Contains(successes, name)
}

func TestOneErrorWriter(t *testing.T) {
	in := func(path, statement string) map[string]string {
		name := strings.Split(path, "/")
		return one(path, "package "+name[len(name)-2]+"\n\nimport \"net/http\"\n\nfunc f(w http.ResponseWriter, status int) {\n\t"+statement+"\n}\n")
	}
	try(t, oneErrorWriter, []trial{
		{"a helper", in("proxy/a.go", `http.Error(w, "no", status)`), []string{"proxy/a.go"}},
		{"a helper in refuse.go", in("proxy/refuse.go", `http.Error(w, "no", 500)`), nil},
		{"a helper in a file of that name elsewhere", in("cache/refuse.go", `http.NotFound(w, nil)`), []string{"cache/refuse.go"}},
		{"a helper in a test", in("proxy/a_test.go", `http.Error(w, "no", 500)`), nil},
		{"a status by name", in("cmd/weir/a.go", `w.WriteHeader(http.StatusBadGateway)`), []string{"cmd/weir/a.go"}},
		{"a status by number", in("proxy/a.go", `w.WriteHeader(418)`), []string{"proxy/a.go"}},
		{"a good status", in("proxy/a.go", `w.WriteHeader(http.StatusNotModified)`), nil},
		{"the upstream's status", in("proxy/a.go", `w.WriteHeader(status)`), nil},
		{"a made-up response", in("proxy/a.go", `_ = http.Response{StatusCode: http.StatusTooManyRequests}`), []string{"proxy/a.go"}},
		{"a made-up good response", in("proxy/a.go", `_ = http.Response{StatusCode: http.StatusOK}`), nil},
		{"a body", in("limits/a.go", "w.Write([]byte(`{ \"message\" : \"no\"}`))"), []string{"limits/a.go"}},
		{"a body to be read", in("limits/a.go", "var _ struct{ M string `json:\"message\"` }"), nil},
		{"the reference service", in("internal/service/a.go", `http.Error(w, "no", 500)`), nil},
	})
}
