//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// TestMCPRecipe makes the requests of github-mcp-server to its three base URLs.
func TestMCPRecipe(t *testing.T) {
	r := startRecipe(t, "mcp.md")
	r.env = append(r.env, "GITHUB_HOST="+r.url, "GITHUB_PERSONAL_ACCESS_TOKEN="+r.key)
	r.checkRepetition(func() {
		text, _ := r.run(installed(t, "mcp"))
		for _, want := range []string{
			"get_me: acme-owner\n", "list_issues: true\n", `get_file_contents: README.md, 200 OK "text\n"`, "search_issues: true\n", "add_issue_comment: POST", "403",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}, "search/issues")
	r.wantLogged("POST /repos/{owner}/{repo}/issues/{issue_number}/comments issues/create-comment 403")
}

// TestMCPRecipeThroughForwardProxy runs tools of a server that has the host of the API compiled in.
func TestMCPRecipeThroughForwardProxy(t *testing.T) {
	r := startRecipe(t, "mcp.md", "callers:", "proxy:\n  {listen: \":3128\", ca: {certificate: weir-ca.crt, key: weir-ca.key}}\ncallers:")
	s := startMCP(r)
	r.checkRepetition(func() {
		for _, c := range []struct{ tool, arguments, want string }{
			{"list_issues", `{"owner":"acme","repo":"widgets","state":"open"}`, `"number"`},
			{"get_issue", `{"owner":"acme","repo":"widgets","issue_number":1}`, `"number": 1`},
			{"list_commits", `{"owner":"acme","repo":"widgets"}`, `"sha"`},
			{"search_issues", `{"q":"repo:acme/widgets is:issue"}`, `"total_count"`},
		} {
			text := s.call("tools/call", `{"name":"`+c.tool+`","arguments":`+c.arguments+`}`)
			if !strings.Contains(text, c.want) {
				t.Errorf("%s: no %s in %.300s", c.tool, c.want, text)
			}
		}
	}, "search/issues")
	if text := s.call("tools/call", `{"name":"create_issue","arguments":{"owner":"acme","repo":"widgets","title":"New"}}`); !strings.Contains(text, `does not let its client "triage-agent" call POST issues/create`) {
		t.Errorf("a tool that writes: got %s", text)
	}
	r.checkSpending()
}

// mcpServer is an MCP server that speaks JSON-RPC over its standard input and output.
type mcpServer struct {
	*testing.T
	in    io.Writer
	lines *bufio.Scanner
	id    int
}

// startMCP starts the server and initializes the session.
func startMCP(r *recipe) *mcpServer {
	r.Helper()
	s := &mcpServer{T: r.T}
	r.env = append(r.env, "GITHUB_PERSONAL_ACCESS_TOKEN=none")
	s.in, s.lines = r.start("node", "--import", installed(r.T, "preload.mjs"), installed(r.T, "node_modules/@modelcontextprotocol/server-github/dist/index.js"))
	s.call("initialize", `{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	s.send(map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	return s
}

func (s *mcpServer) send(message any) {
	s.Helper()
	text, err := json.Marshal(message)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.in.Write(append(text, '\n')); err != nil {
		s.Fatal(err)
	}
}

// call calls a method and returns the text of the result or of the error.
func (s *mcpServer) call(method, params string) string {
	s.Helper()
	s.id++
	s.send(map[string]any{"jsonrpc": "2.0", "id": s.id, "method": method, "params": json.RawMessage(params)})
	if !s.lines.Scan() {
		s.Fatalf("%s: the server ended: %v", method, s.lines.Err())
	}
	var response struct {
		ID     int
		Result struct{ Content []struct{ Text string } }
		Error  struct{ Message string }
	}
	if err := json.Unmarshal(s.lines.Bytes(), &response); err != nil || response.ID != s.id {
		s.Fatalf("%s: got %s, %v", method, s.lines.Text(), err)
	}
	for _, c := range response.Result.Content {
		return c.Text
	}
	return response.Error.Message
}
