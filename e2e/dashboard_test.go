//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// live is a script that reports whether the page has a connection and shows the first data.
const live = `document.getElementById("live").dataset.state === "live" && !document.querySelector(".screen:not([hidden])").innerText.includes("Waiting for the gateway")`

// visit opens an address within the page, such as requests?result=hit, and waits for its data.
func visit(page *browser, address string) {
	page.Helper()
	value[string](page, fmt.Sprintf("location.hash = %q", address))
	page.eventually("the page shows "+address, fmt.Sprintf(`new Promise(done => setTimeout(() => done(location.hash === %q && %s), 30))`, "#"+address, live))
}

// textOf returns the text of the first element that a selector matches.
func textOf(page *browser, selector string) string {
	page.Helper()
	return value[string](page, fmt.Sprintf("(document.querySelector(%q)?.innerText ?? \"\")", selector))
}

// TestDashboardShowsRequestsAndBudgets uses the page of a gateway with the reference service
// as its upstream.
func TestDashboardShowsRequestsAndBudgets(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--traffic", "off")
	gateway, service := d.gateway, d.service
	page := openDashboard(t, d.admin)

	// A budget falls with each request.
	left := func(n int) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#budget-rows tr")].some(r => r.innerText.includes("search") && r.innerText.includes("%d / 30"))`, n)
	}
	for i := range 3 {
		get(t, fmt.Sprintf("%s/search/commits?q=gear+%d", gateway, i), "Authorization: Bearer tok-owner")
		page.eventually("the budget has fallen", left(29-i))
	}

	// The page of a request opens by mouse and by keyboard.
	visit(page, "requests")
	get(t, gateway+"/gitignore/templates")
	get(t, gateway+"/gitignore/templates")
	page.eventually("both requests are listed", `document.querySelectorAll('#request-rows [data-outcome="hit"]').length === 1`)
	page.do(chromedp.Click(chromedp.CSS(`#request-rows tr:has([data-outcome="hit"])`)))
	page.eventually("the page of the hit opens", `document.getElementById("why")?.innerText.startsWith("Hit: the stored response is fresh")`)
	text := textOf(page, "#request-body")
	failIf(t, !strings.Contains(text, "No stages were recorded: the response came from the cache.") || !strings.Contains(text, "weir; hit; ttl="), "%v", text)
	page.do(chromedp.KeyEvent("\x1b"))
	page.eventually("Escape returns to the list", `location.hash === "#requests" && document.getElementById("screen-request").hidden`)
	page.do(chromedp.Focus(chromedp.CSS(`#request-rows tr:has([data-outcome="miss"]) a`)), chromedp.KeyEvent("\r"))
	page.eventually("Return opens the page of the miss", `document.getElementById("why").innerText.startsWith("Miss: no response was stored for this caller")`)
	page.eventually("the stages are shown", `document.querySelectorAll("#request-body .fall-bar").length >= 2`)

	// The form purges an entry.
	visit(page, "system")
	page.do(chromedp.SendKeys(chromedp.CSS("#purge-target"), "/gitignore/templates"), chromedp.Click(chromedp.CSS("#purge-form .primary")))
	page.eventually("the page asks before the purge", `!document.getElementById("purge-confirm").hidden && document.getElementById("purge-question").innerText.includes("/gitignore/templates") && document.activeElement.id === "purge-yes"`)
	page.do(chromedp.Click(chromedp.CSS("#purge-yes")))
	page.eventually("the result of the purge is shown", `document.getElementById("control-result").innerText === "1 entry will be revalidated before use."`)
	page.eventually("the purge is in the audit trail", `document.getElementById("audit").innerText.includes("/gitignore/templates")`)
	resp, _ := get(t, gateway+"/gitignore/templates")
	failIf(t, !strings.Contains(resp.Header.Get("Cache-Status"), "fwd=stale"), "after the purge: %s", resp.Header.Get("Cache-Status"))
	page.do(chromedp.Click(chromedp.CSS("#reload")))
	page.eventually("the reload fails without a file", `document.getElementById("control-result").innerText.includes("no configuration file")`)
	page.eventually("the answer names the failed reload", `document.getElementById("system-answer").innerText.startsWith("Yes, but the last reload failed")`)
	page.expect("422 (Unprocessable Entity)")

	visit(page, "budgets")
	checkCoolDowns(page, gateway, service)
	page.screenshot("cooldown-budgets-1440-light", true)
}

// checkCoolDowns checks that the page shows the cool-down of an account within two seconds. A
// busy machine gets three attempts.
func checkCoolDowns(page *browser, gateway, service string) {
	page.Helper()
	text := textOf(page, "#cooldowns")
	failIf(page, !strings.Contains(text, "No account is in a cool-down"), "%v", text)
	send(page, http.MethodPut, service+"/_service/quirks", `{"secondary_every": 1}`)
	var took []time.Duration
	for _, token := range []string{"tok-member", "tok-outsider", "tok-security-manager"} {
		get(page, gateway+"/orgs/acme/members", "Authorization: Bearer "+token)
		rows := fmt.Sprintf(`document.querySelectorAll("#cooldowns .row").length === %d`, len(took)+1)
		took = append(took, page.eventually("the cool-down is shown", rows+` && /then one probe request[^]*\d+s/.test(document.getElementById("cooldowns").innerText)`))
		if slices.Min(took) <= 2*time.Second {
			break
		}
	}
	failIf(page, slices.Min(took) > 2*time.Second, "cool-downs were shown after %v, want at most 2s", took)
	page.eventually("an alert is shown", `/account[^]* in a cool-down/.test(document.getElementById("alerts").innerText)`)
}

// TestDashboardReconnects restarts the gateway of an open page.
func TestDashboardReconnects(t *testing.T) {
	t.Parallel()
	first := startDemo(t, "--traffic", "off")
	address := strings.TrimPrefix(first.admin, "http://")
	page := openDashboard(t, first.admin+"/#requests")
	first.signal(syscall.SIGTERM)
	_ = first.exited()
	page.eventually("the page shows the lost connection", `document.getElementById("live").innerText === "reconnecting"`)
	page.eventually("the page says how old its data are", `/data of \d\d:\d\d:\d\d, [1-9]\d*s ago/.test(document.getElementById("banner").innerText)`)
	for _, screen := range []string{"budgets", "spending", "requests", "system"} {
		value[string](page, fmt.Sprintf("location.hash = %q", screen))
		page.eventually("the answer is unknown on "+screen, fmt.Sprintf(`document.getElementById("%s-answer").innerText.startsWith("Unknown. The gateway has not responded since") && document.getElementById("%[1]s-answer").dataset.tone === "bad"`, screen))
	}
	before, store := textOf(page, "#banner"), textOf(page, "#store")
	page.eventually("time passes", fmt.Sprintf(`document.getElementById("banner").innerText !== %q`, before))
	text := textOf(page, "#store")
	failIf(t, text != store || !strings.Contains(text, "state unknown"), "without the gateway, the store has changed from %s to %s", store, text)
	page.screenshot("disconnected-1440-light", true)
	second := startDemo(t, "--traffic", "off", "--admin", address)
	page.eventually("the page is live again", live)
	visit(page, "requests")
	get(t, second.gateway+"/gitignore/templates")
	page.eventually("the page shows a new request", `document.querySelectorAll("#request-rows tr").length === 1`)
	page.expect("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
}

func TestDashboardRequiresToken(t *testing.T) {
	t.Parallel()
	admin := "http://" + serveText(t, "upstream: {url: \"http://127.0.0.1:1\"}\nadmin: {token: correct-horse}\n").admin
	page := openPage(t, "about:blank")
	page.setWindow(390, 800, true)
	page.open(admin)
	page.eventually("the login page is shown", `location.pathname === "/login" && document.activeElement.id === "token"`)
	page.screenshot("login-390-dark", false)
	page.do(chromedp.SendKeys(chromedp.CSS("#token"), "battery-staple\r"))
	page.eventually("a wrong token is refused", `document.getElementById("login-result").innerText === "wrong admin token"`)
	page.expect("401 (Unauthorized)")
	page.setWindow(1440, 900, false)
	page.screenshot("login-1440-light", false)
	page.do(chromedp.SendKeys(chromedp.CSS("#token"), "correct-horse\r"))
	page.eventually("the page is live", `location.pathname === "/" && `+live)
	want(t, "cookie that scripts can read", value[string](page, "document.cookie"), "")
	stored := value[string](page, `JSON.stringify({...localStorage, ...sessionStorage})`)
	failIf(t, strings.Contains(stored, "horse"), "the browser stores the token: %s", stored)
	page.do(chromedp.Click(chromedp.CSS("#logout")))
	page.eventually("the login page is shown again", `location.pathname === "/login"`)
	page.open(admin)
	page.eventually("the session has ended", `location.pathname === "/login"`)
}
