//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// startScreens opens the dashboard of a fake gateway with requests.
func startScreens(t *testing.T, accounts, requests int) (page *browser, url string) {
	t.Helper()
	url = newFakeGateway(t, accounts, requests).start()
	return openDashboard(t, url), url
}

// A URL holds the screen and its filters. The back button returns to the previous filters.
func TestDashboardURLsHoldScreenAndFilters(t *testing.T) {
	t.Parallel()
	page, url := startScreens(t, 9, 400)
	rows := func(condition string) string {
		return `[...document.querySelectorAll("#request-rows tr")].length > 0 && [...document.querySelectorAll("#request-rows tr")].every(r => ` + condition + `)`
	}
	page.open(url + "/?shared#requests?client=builds&result=miss&status=2xx&range=10m")
	page.eventually("the shared URL shows the filtered requests", rows(`r.innerText.includes("builds") && r.innerText.includes("miss") && r.innerText.includes("200")`))
	page.eventually("the form shows the filters", `document.querySelector("#requests-filters [name=status]").value === "2xx" && document.querySelector("#requests-chips").innerText.includes("builds") && document.querySelector("#outcomes [aria-pressed=true]").innerText.includes("miss")`)
	page.do(chromedp.Click(chromedp.CSS(`#outcomes [data-outcome="hit"]`)))
	page.eventually("another outcome is shown", rows(`r.innerText.includes("hit")`)+` && location.hash.includes("result=hit")`)
	page.do(chromedp.Click(chromedp.CSS("#requests-chips a")))
	page.eventually("the client filter is removed", `!location.hash.includes("client") && document.querySelector("#requests-chips").hidden`)
	page.do(chromedp.SendKeys(chromedp.CSS("#requests-filters [name=q]"), "gitignore"))
	page.eventually("the search is part of the URL", `location.hash.includes("q=gitignore") && `+rows(`r.innerText.includes("gitignore")`))

	page.do(chromedp.Click(chromedp.CSS("#request-rows tr")))
	page.eventually("the page of the request opens", `location.hash.startsWith("#requests/REQ") && document.getElementById("why").innerText.startsWith("Hit")`)
	value[bool](page, "(history.back(), true)")
	page.eventually("the back button returns to the filtered list", `!document.getElementById("screen-requests").hidden && document.querySelector("#requests-filters [name=q]").value === "gitignore"`)
	value[bool](page, "(history.go(-2), true)")
	page.eventually("the back button restores the first filters", `location.hash.includes("result=miss") && `+rows(`r.innerText.includes("miss") && r.innerText.includes("builds")`))

	// Names link to the screen that explains them.
	visit(page, "spending")
	page.do(chromedp.Click(chromedp.CSS("#spend tr .link")))
	page.eventually("a client links to its operations", `location.hash.includes("by=operation") && document.getElementById("spend-name").innerText === "Operation" && document.getElementById("spending-answer").innerText.includes(" spent ")`)
	page.do(chromedp.Click(chromedp.CSS("#spend tr:first-child .late .link")))
	page.eventually("the number of requests links to the requests", `location.hash.includes("#requests?") && location.hash.includes("operation=") && location.hash.includes("client=")`)
	visit(page, "spending?by=version")
	page.eventually("the costs are grouped by version", `document.getElementById("spend-name").innerText === "API version"`)
	visit(page, "budgets")
	page.eventually("the answer names the budget with the highest risk", `(([name, budget]) => document.getElementById("budgets-answer").innerText.startsWith("Yes. " + budget + " of " + name + " "))([...document.querySelectorAll("#budget-rows tr .cut")].map(e => e.innerText))`)
	page.do(chromedp.Click(chromedp.CSS("#budget-rows tr .link")))
	page.eventually("an account links to its clients", `location.hash.includes("#spending?account=") && document.querySelectorAll("#spend tr").length > 0`)
	page.eventually("the hour before is compared", `/[▲▼]\s\d+\s%/.test(document.getElementById("spend").innerText) && /[▲▼]\s\d+\s% against the hour before/.test(document.getElementById("spending-tiles").innerText)`)
}

func TestDashboardIsUsableByKeyboard(t *testing.T) {
	t.Parallel()
	page, _ := startScreens(t, 9, 40)
	for _, c := range [][2]string{{"2", "spending"}, {"3", "requests"}, {"4", "system"}, {"1", "budgets"}} {
		key, screen := c[0], c[1]
		page.do(chromedp.KeyEvent(key))
		page.eventually("the key "+key+" selects a screen", fmt.Sprintf(`!document.getElementById("screen-%s").hidden && document.activeElement.id === "%[1]s-title" && document.querySelector("#nav [aria-current=page]").dataset.screen === "%[1]s"`, screen))
	}
	visit(page, "requests")
	page.do(call(input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: "/", Text: "/"}), chromedp.KeyEvent("b"))
	page.eventually("the key / selects the search", `document.activeElement.name === "q" && document.activeElement.value === "b"`)
	page.do(chromedp.KeyEvent("2"))
	page.eventually("a digit in the search is text", `document.activeElement.value === "b2" && !document.getElementById("screen-requests").hidden`)
	page.do(chromedp.KeyEvent("\x1b"))
	page.eventually("Escape leaves the search", `document.activeElement === document.body`)
	// The Tab key reaches the elements in the order of the page.
	visit(page, "budgets")
	value[bool](page, `(document.querySelector(".skip").focus(), true)`)
	var order []string
	for range 12 {
		page.do(chromedp.KeyEvent("\t"))
		order = append(order, value[string](page, `document.activeElement.closest("nav, form, .window, .bar-tools")?.id || document.activeElement.closest("nav, form, .window, .bar-tools")?.className || document.activeElement.id`))
	}
	want(t, "tab order", strings.Join(order, " "),
		"nav nav nav nav bar-tools budgets-filters budgets-filters budgets-filters window window window window")
}

// Long lists draw only the rows near the visible part. Scrolling reaches the last row.
func TestDashboardDrawsWindowsOfLongLists(t *testing.T) {
	t.Parallel()
	page, _ := startScreens(t, 1000, 2000)
	const ends = `(() => { const w = document.querySelector(".screen:not([hidden]) .window"); w.scrollTop = w.scrollHeight; return true })()`
	for screen, body := range map[string]string{"budgets": "budget-rows", "spending": "spend", "requests": "request-rows"} {
		visit(page, screen)
		count := fmt.Sprintf(`document.querySelectorAll("#%s tr").length`, body)
		total := fmt.Sprintf(`(Number(document.getElementById(%q).closest("table").getAttribute("aria-rowcount")) - 1)`, body)
		page.eventually("the list is longer than its window", count+" > 5 && "+count+" < 60 && "+total+" > 150")
		first := value[string](page, fmt.Sprintf(`document.getElementById(%q).innerText`, body))
		value[bool](page, ends)
		page.eventually("the end of the list is drawn", fmt.Sprintf(`(() => { const w = document.querySelector(".screen:not([hidden]) .window"), last = document.querySelector("#%s tr:last-child").getBoundingClientRect(); return %s < 60 && Math.abs(last.bottom - w.getBoundingClientRect().bottom) < 4 })()`, body, count))
		last := value[string](page, fmt.Sprintf(`document.getElementById(%q).innerText`, body))
		failIf(t, last == first, "%s: scrolling did not change the rows", screen)
	}
	visit(page, "spending?q=team-1")
	page.eventually("the search selects clients", `document.querySelectorAll("#spend tr").length > 5 && [...document.querySelectorAll("#spend tr")].every(r => r.innerText.includes("team-1"))`)
}

// A hash is shown with a readable label. An empty page shows the command that sends a first request.
func TestDashboardShowsLabelsAndFirstSteps(t *testing.T) {
	t.Parallel()
	page, _ := startScreens(t, 9, 400)
	for _, screen := range []string{"budgets", "spending", "spending?by=account", "requests?q=account"} {
		visit(page, screen)
		page.eventually("the label is shown on "+screen, `/account [0-9a-f]{8}\b/.test(document.querySelector(".screen:not([hidden])").innerText) && !/[0-9a-f]{20}/.test(document.body.innerText)`)
	}
	empty, _ := startScreens(t, 0, 0)
	for _, screen := range []string{"budgets", "spending", "requests"} {
		visit(empty, screen)
		empty.eventually("the command is shown on "+screen, `document.querySelector(".screen:not([hidden])").innerText.includes('curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8080/user')`)
	}
}
