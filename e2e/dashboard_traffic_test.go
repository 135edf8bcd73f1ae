//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostileTexts returns texts that break out of elements, attributes, scripts, templates, lines and terminals.
func hostileTexts() []string {
	return []string{
		`<img src=x onerror=window.pwned=1>`,
		`"><script>window.pwned=2</script>`,
		`' autofocus onfocus=window.pwned=3 x='`,
		`javascript:window.pwned=4`,
		`</script></style></textarea></title><svg onload=window.pwned=5>`,
		`{{constructor.constructor("window.pwned=6")()}}${window.pwned=7}`,
		"\u202e<iframe srcdoc='<script>parent.pwned=8</script>'>\u2066",
		`<a href="javascript:window.pwned=9" target=_top>` + strings.Repeat("A", 4096),
		`constructor`, `__proto__`,
	}
}

// hostileTraffic is a gateway whose upstream, clients and webhooks send hostile texts in every field that they choose.
type hostileTraffic struct {
	*testing.T
	gateway string // address
	admin   string // URL
}

// startHostile starts the gateway and the upstream. The upstream takes the text from the query of the request.
func startHostile(t *testing.T) *hostileTraffic {
	t.Helper()
	up := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.URL.Query().Get("text")
		switch {
		case strings.HasSuffix(r.URL.Path, "/line"):
			breakProtocol(w, "HTTP/1.1 "+text+"\r\n\r\n")
			return
		case strings.HasSuffix(r.URL.Path, "/field"):
			breakProtocol(w, "HTTP/1.1 200 OK\r\n"+text+"\r\n\r\n")
			return
		case strings.HasSuffix(r.URL.Path, "/length"):
			breakProtocol(w, "HTTP/1.1 200 OK\r\nContent-Length: "+text+"\r\n\r\n")
			return
		}
		h := w.Header()
		for _, name := range []string{"X-Service-Request-Id", "X-Request-Id", "Cache-Status", "Server", "Link", "Location", "Etag", "Vary", "Content-Type", "Www-Authenticate", "X-Oauth-Scopes", "Warning", "Retry-After"} {
			h.Set(name, text)
		}
		for name, value := range map[string]string{"Limit": "5000", "Remaining": "17", "Used": "4983", "Reset": fmt.Sprint(time.Now().Add(time.Minute).Unix()), "Resource": text} {
			h.Set("X-Ratelimit-"+name, value)
		}
		switch {
		case strings.Contains(r.URL.Path, "/stats/"):
			w.WriteHeader(http.StatusAccepted)
		case strings.HasSuffix(r.URL.Path, "/limited"):
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(map[string]string{"message": "You have exceeded a secondary rate limit. " + text})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"message": text})
	}))
	r := serveText(t, fmt.Sprintf(`upstream: {url: %q}
webhooks: {secret: hook}
limits: {cold_start: trust, wait: 10ms, inbound: {rate: 0}}
statistics: {poll: {first: 10s}}
`, up))
	return &hostileTraffic{t, r.address, "http://" + r.admin}
}

// breakProtocol sends bytes instead of a response.
func breakProtocol(w http.ResponseWriter, text string) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(c, text)
	_ = c.Close()
}

// request sends the bytes of a request. Fields with a line break end the request early, as an attacker would try.
func (h *hostileTraffic) request(method, target, body string, fields ...string) {
	h.Helper()
	c, err := net.Dial("tcp", h.gateway)
	must(h, err)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n\r\n%s", method, target, len(body), strings.Join(append(fields, "X-Last: 1"), "\r\n"), body)
	if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 ") {
		h.Errorf("%s %.80s: %v, got %.80q", method, target, err, text)
	}
}

// send sends a text in every field of requests, responses and webhook deliveries.
func (h *hostileTraffic) send(n int, text string) {
	h.Helper()
	query := "?text=" + url.QueryEscape(text)
	segment := url.PathEscape(text)
	own := fmt.Sprint("Authorization: Bearer made-up-", n)
	h.request("GET", "/user"+query, "", own)
	h.request("GET", "/repos/acme/"+segment+"/stats/contributors"+query, "", own, "Prefer: respond-async")
	h.request("GET", "/"+segment+query, "", own)
	h.request("GET", "/gitignore/templates/"+segment+query, "")
	h.request("PUT", "/repos/"+segment+"/widgets/subscription"+query, `{"subscribed":true}`, own)
	for _, fault := range []string{"line", "field", "length", "limited"} {
		h.request("GET", "/made/up/"+fault+query, "", fmt.Sprint("Authorization: Bearer made-up-", n, "-", fault))
	}
	h.request(strings.Map(tokenRune, text), "/user"+query, "", own)
	for _, name := range []string{"User-Agent", "X-Request-Id", "Referer", "Origin", "Weir-Tag", "Traceparent", "Baggage", "X-Forwarded-For", "Accept", "Accept-Language", "Cache-Control", "If-None-Match", "Prefer", "Cookie", "Authorization"} {
		fields := []string{name + ": " + text}
		if name != "Authorization" {
			fields = append(fields, own)
		}
		h.request("GET", "/user"+query, "", fields...)
	}
	call := toJSON(map[string]any{"operationName": text, "query": "query " + strings.Map(nameRune, text) + " { viewer { login } } # " + text, "variables": map[string]string{text: text}})
	h.request("POST", "/graphql"+query, call, own)
	delivery := toJSON(map[string]any{"action": text, "ref": text, "repository": map[string]string{"full_name": "acme/" + text}, "organization": map[string]string{"login": text}, "sender": map[string]string{"login": text}})
	h.request("POST", "/_weir/webhooks", delivery, "X-Service-Event: "+text, "X-Service-Delivery: "+text, signature("hook", delivery))
}

// tokenRune keeps the characters of a method.
func tokenRune(r rune) rune {
	if strings.ContainsRune("!#$%&'*+-.^_`|~", r) || nameRune(r) > 0 {
		return r
	}
	return -1
}

// nameRune keeps the characters of a GraphQL name.
func nameRune(r rune) rune {
	if r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

// injected is a script that describes elements and attributes that no file of the dashboard creates, or returns "".
const injected = `(() => {
  const found = [];
  if (window.pwned !== undefined) found.push("script " + window.pwned);
  for (const node of document.querySelectorAll("*")) {
    const name = node.localName;
    if (["iframe", "object", "embed", "base", "style", "textarea", "template"].includes(name)) found.push(name);
    if (name === "script" && !["/assets/js/theme.js", "/assets/js/app.js"].includes(node.getAttribute("src"))) found.push("script " + node.outerHTML);
    if (name === "img" && node.getAttribute("src") !== "/assets/icon.svg") found.push("img " + node.outerHTML);
    for (const a of node.attributes) {
      if (a.name.startsWith("on") || a.name === "srcdoc" || a.name === "autofocus") found.push(name + " " + a.name);
      if (/^(href|src|action|formaction|xlink:href)$/.test(a.name) && !/^([#]|[/](?![/]))/.test(a.value)) found.push(name + " " + a.name + "=" + a.value);
    }
  }
  return found.join("; ");
})()`

// injectedOnScreens is a script that visits every screen and returns the first result of injected.
const injectedOnScreens = `(async () => {
  for (const address of ["budgets", "spending", "spending?by=operation", "spending?by=tag", "spending?by=account", "requests", "system"]) {
    location.hash = address;
    await new Promise(done => setTimeout(done, 30));
    const found = ` + injected + `;
    if (found) return address + ": " + found;
  }
  return "";
})()`

// TestDashboardShowsHostileTrafficAsText sends hostile texts through a gateway in every way that clients, the upstream
// and webhooks have. It opens every part of the dashboard and every page of the admin listener in a browser. No text may
// become a script, an element, an attribute or a link, and no panel may fail.
func TestDashboardShowsHostileTrafficAsText(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	page := openDashboard(t, h.admin)
	texts := hostileTexts()
	h.request("GET", "/user?text=core", "", "Authorization: Bearer first")
	page.eventually("the first budget is shown", `document.getElementById("budget-rows").innerText.includes("core")`)
	for n, text := range texts {
		h.send(n, text)
		want(t, fmt.Sprintf("injected by %.40q", text), value[string](page, injectedOnScreens), "")
	}
	page.eventually("an error with a text of the upstream is shown", `fetch("/api/v1/requests").then(r => r.text()).then(s => s.includes("malformed HTTP") && s.includes("window.pwned=1"))`)
	visit(page, "budgets?q=constructor")
	page.eventually("a resource that the upstream named is shown", `document.getElementById("budget-rows").innerText.includes("constructor")`)
	visit(page, "requests")
	page.eventually("a polled path is shown", `document.getElementById("polls").innerText.includes("stats/contributors")`)

	// The row and the page of every request. The page skips events of fast traffic, so it loads the list again.
	page.open(h.admin + "/?again#requests")
	page.eventually("the page is live again", live)
	opened := value[struct {
		Rows, Hostile int
		Injected      string
	}](page, `(async () => {
  const result = {rows: 0, hostile: 0, injected: ""};
  const drawn = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const rows = new Set(), list = document.querySelector("#screen-requests .window");
  for (let before = -1; list.scrollTop > before; ) {
    before = list.scrollTop;
    for (const row of document.querySelectorAll("#request-rows tr")) rows.add(row.dataset.id);
    result.injected ||= `+injected+`;
    list.scrollTop += 200;
    await drawn();
  }
  result.rows = rows.size;
  for (const id of rows) {
    const shown = new Promise(done => addEventListener("popstate", done, {once: true}));
    location.hash = "requests/" + encodeURIComponent(id);
    await shown;
    await new Promise(done => setTimeout(done, 60)); // Chromium throttles more than 200 navigations in ten seconds
    if (document.getElementById("request-body").textContent.includes("window.pwned")) result.hostile++;
    result.injected ||= `+injected+`;
  }
  return result;
})()`)
	failIf(t, opened.Rows < 200 || opened.Hostile < 10 || opened.Injected != "", "opened %d requests, %d with a hostile text; the dashboard contains: %q", opened.Rows, opened.Hostile, opened.Injected)
	for _, text := range texts {
		for _, screen := range []string{"budgets", "spending", "requests", "system"} {
			script := fmt.Sprintf(`(() => { const f = document.getElementById(%q + "-filters"); f.q.value = %s; f.q.dispatchEvent(new Event("input", {bubbles: true})); return true })()`, screen, toJSON(text))
			visit(page, screen)
			value[bool](page, script)
			want(t, fmt.Sprintf("injected by the filter %.40q", text), value[string](page, injected), "")
		}
	}

	// The test opens every page as a document, also with the text in its address.
	pages := []string{"/help", "/metrics", "/api/v1/accounts", "/api/v1/credentials", "/api/v1/requests", "/api/v1/series", "/api/v1/state", "/api/v1/cache", "/api/v1/config", "/api/v1/audit", "/api/v1/grants"}
	for _, text := range texts {
		for _, form := range []string{"/%s", "/api/v1/series?account=%s", "/assets/%s", "/login?next=%s", "/?%s#%[1]s", "/?%s#requests/%[1]s", "/?%s#spending?by=%[1]s&client=%[1]s"} {
			pages = append(pages, fmt.Sprintf(form, url.PathEscape(text)))
		}
	}
	const document = `window.pwned === undefined && !document.querySelector("iframe, object, embed, a[href^='javascript:'], img:not([src='/assets/icon.svg']), [onerror], [onload], [onfocus]")`
	for _, address := range pages {
		page.open(h.admin + address)
		if !value[bool](page, document) {
			t.Errorf("%.80s: the page runs or contains the text: %.400s", address, value[string](page, "document.documentElement.outerHTML"))
		}
	}
	page.expect("404 (Not Found)", "ERR_CONNECTION", "ERR_HTTP")
}

// TestDashboardShowsResourcesNamedLikeObjectMembers uses names that every JavaScript object has. The upstream may
// choose such names for resources. A look-up by name must not find the member of the object.
func TestDashboardShowsResourcesNamedLikeObjectMembers(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	page := openDashboard(t, h.admin)
	const own = "Authorization: Bearer one"
	h.request("GET", "/user?text=core", "", own)
	page.eventually("the line of the first budget is loaded", `performance.getEntriesByType("resource").some(e => e.name.includes("/api/v1/series?account="))`)
	names := []string{"constructor", "__proto__"}
	for _, name := range names {
		h.request("GET", "/user?text="+name, "", own)
	}
	for _, name := range append(slices.Clone(names), "core") {
		page.eventually("the budget "+name+" is shown", fmt.Sprintf(`[...document.querySelectorAll("#budget-rows tr")].some(r => r.innerText.includes(%q) && r.innerText.includes("/ 5,000") && r.querySelector("polyline"))`, name))
	}
}
