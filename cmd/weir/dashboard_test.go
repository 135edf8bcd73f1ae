package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/weirgate/weir/internal/browsertest"
)

// screenshots is where pictures go, for people to look at.
const screenshots = "../../bin/screenshots"

// live is when the page listens, and has drawn what it was told.
const live = `document.getElementById("live").dataset.state === "live" && document.querySelectorAll("#tiles .tile").length === 6`

// textOf is the text of the part of the page that a selector finds first.
func textOf(page *browsertest.Browser, selector string) string {
	page.Helper()
	return browsertest.Value[string](page, fmt.Sprintf("(document.querySelector(%q)?.innerText ?? \"\")", selector))
}

// TestTheDashboardShowsWhatHappens drives the page in front of a real gateway, and the
// reference service behind it.
func TestTheDashboardShowsWhatHappens(t *testing.T) {
	s := start(t, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0", "--traffic", "off")
	gateway, admin, service := s.says(`gateway +(http://\S+)`), s.says(`admin +(http://\S+)`), s.says(`service +(http://\S+)`)
	s.drain()
	page := browsertest.Start(t)
	page.Look(1440, 900, false)
	page.Open(admin)
	page.Eventually("the page is live", live)

	// A budget falls while requests are made.
	left := func(n int) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#budget-rows tr")].some(r => r.innerText.includes("search") && r.innerText.includes("%d / 30"))`, n)
	}
	for i := range 3 {
		get(t, fmt.Sprintf("%s/search/commits?q=gear+%d", gateway, i), "Authorization: Bearer tok-owner")
		page.Eventually("the budget has fallen", left(29-i))
	}

	// Why a request got what it got: by mouse, and by keyboard.
	get(t, gateway+"/gitignore/templates")
	get(t, gateway+"/gitignore/templates")
	page.Eventually("both are listed", `document.querySelectorAll('#request-rows [data-outcome="hit"]').length === 1`)
	page.Do(chromedp.Click(chromedp.CSS(`#request-rows tr:has([data-outcome="hit"])`)))
	page.Eventually("it is explained", `document.getElementById("drawer").open && document.getElementById("why").innerText.startsWith("Hit: the stored response is fresh")`)
	if text := textOf(page, "#drawer-body"); !strings.Contains(text, "No stages were recorded: the response came from the cache.") || !strings.Contains(text, "weir; hit; ttl=") {
		t.Error(text)
	}
	page.Do(chromedp.KeyEvent("\x1b"))
	page.Eventually("Escape closes it", `!document.getElementById("drawer").open`)
	page.Do(chromedp.Focus(chromedp.CSS(`#request-rows tr:has([data-outcome="miss"]) button`)), chromedp.KeyEvent("\r"))
	page.Eventually("Return opens it", `document.getElementById("drawer").open && document.getElementById("why").innerText.startsWith("Miss: no response was stored for this caller")`)
	page.Do(chromedp.KeyEvent("\x1b"))

	// A purge from the page.
	page.Do(chromedp.SendKeys(chromedp.CSS("#purge-target"), "/gitignore/templates"), chromedp.Click(chromedp.CSS("#purge-form [type=submit]")))
	page.Eventually("the purge is done", `document.getElementById("control-result").innerText === "1 entry will be revalidated before use."`)
	page.Eventually("it is on the record", `document.getElementById("audit").innerText.includes("/gitignore/templates")`)
	if resp, _ := get(t, gateway+"/gitignore/templates"); !strings.Contains(resp.Header.Get("Cache-Status"), "fwd=stale") {
		t.Errorf("after the purge: %s", resp.Header.Get("Cache-Status"))
	}
	page.Do(chromedp.Click(chromedp.CSS("#reload")))
	page.Eventually("there is nothing to reload", `document.getElementById("control-result").innerText === "reload: this process has no configuration file"`)
	page.Expect("422 (Unprocessable Entity)")

	coolsDown(page, gateway, service)
	page.Shot(screenshots, "demo-1440-light", true)
}

// coolsDown lets the API tell accounts to pause, and wants the page to say so within two
// seconds of one of three: a machine that is busy with other tests may miss it once.
func coolsDown(page *browsertest.Browser, gateway, service string) {
	page.Helper()
	if text := textOf(page, "#cooldowns"); !strings.Contains(text, "No account is in a cool-down") {
		page.Error(text)
	}
	faults, err := http.NewRequestWithContext(page.Context(), http.MethodPut, service+"/_service/faults", strings.NewReader(`{"secondary_every": 1}`))
	if err != nil {
		page.Fatal(err)
	}
	asks(page, faults)
	var took []time.Duration
	for _, token := range []string{"tok-member", "tok-outsider", "tok-security-manager"} {
		limited, err := http.NewRequestWithContext(page.Context(), http.MethodGet, gateway+"/orgs/acme/members", nil)
		if err != nil {
			page.Fatal(err)
		}
		limited.Header.Set("Authorization", "Bearer "+token)
		asks(page, limited)
		rows := fmt.Sprintf(`document.querySelectorAll("#cooldowns .row").length === %d`, len(took)+1)
		took = append(took, page.Eventually("the cool-down is shown", rows+` && /then one probe request[^]*\d+ s/.test(document.getElementById("cooldowns").innerText)`))
		if slices.Min(took) <= 2*time.Second {
			break
		}
	}
	if slices.Min(took) > 2*time.Second {
		page.Errorf("cool-downs were shown after %v", took)
	}
	page.Eventually("it is an alert", `/account[^]* in a cool-down/.test(document.getElementById("alerts").innerText)`)
}

func asks(page *browsertest.Browser, req *http.Request) {
	page.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		page.Fatal(err)
	}
	_ = resp.Body.Close()
}

// TestTheDashboardComesBack: it says when nobody listens any more, and goes on when
// somebody does.
func TestTheDashboardComesBack(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	first := startIn(ctx, t, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0", "--traffic", "off")
	address := first.says(`admin +http://(\S+)`)
	first.drain()
	page := browsertest.Start(t)
	page.Look(1440, 900, false)
	page.Open("http://" + address)
	page.Eventually("the page is live", live)
	stop()
	page.Eventually("it says that it is not", `document.getElementById("live").innerText === "reconnecting"`)
	second := start(t, "demo", "--listen", "127.0.0.1:0", "--admin", address, "--service", "127.0.0.1:0", "--traffic", "off")
	gateway := second.says(`gateway +(http://\S+)`)
	second.drain()
	page.Eventually("the page is live again", live)
	get(t, gateway+"/gitignore/templates")
	page.Eventually("it goes on", `document.querySelectorAll("#request-rows tr").length === 1`)
	page.Expect("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
}

// guarded is a gateway whose admin pages ask for a token.
func guarded(t *testing.T, token string) (admin string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, fmt.Sprintf("upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\", token: %q}\n", token))
	s := start(t, "serve", "--config", path)
	address := s.says(`msg="admin listener started" address=(\S+)`)
	s.drain()
	return "http://" + address
}

func TestTheDashboardAsksForTheToken(t *testing.T) {
	admin := guarded(t, "correct-horse")
	page := browsertest.Start(t)
	page.Look(390, 800, true)
	page.Open(admin)
	page.Eventually("the login is there", `location.pathname === "/login" && document.activeElement.id === "token"`)
	page.Shot(screenshots, "login-390-dark", false)
	page.Do(chromedp.SendKeys(chromedp.CSS("#token"), "battery-staple\r"))
	page.Eventually("a wrong token is refused", `document.getElementById("login-result").innerText === "wrong admin token"`)
	page.Expect("401 (Unauthorized)")
	page.Look(1440, 900, false)
	page.Shot(screenshots, "login-1440-light", false)
	page.Do(chromedp.SendKeys(chromedp.CSS("#token"), "correct-horse\r"))
	page.Eventually("the page is live", `location.pathname === "/" && `+live)
	if cookies := browsertest.Value[string](page, "document.cookie"); cookies != "" {
		t.Errorf("scripts see %q", cookies)
	}
	if kept := browsertest.Value[string](page, `JSON.stringify({...localStorage, ...sessionStorage})`); strings.Contains(kept, "horse") {
		t.Errorf("the token is kept: %s", kept)
	}
	page.Do(chromedp.Click(chromedp.CSS("#logout")))
	page.Eventually("the login is back", `location.pathname === "/login"`)
	page.Open(admin)
	page.Eventually("the session is over", `location.pathname === "/login"`)
}

func TestStateOfTheGateway(t *testing.T) {
	s := start(t, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0", "--traffic", "off")
	gateway, admin := s.says(`gateway +(http://\S+)`), s.says(`admin +(http://\S+)`)
	s.drain()
	_, text := get(t, admin+"/api/v1/state")
	var state struct {
		Version, Upstream, Dialect string
		Guarded                    bool
		Store                      struct {
			Kind     string
			Replicas int
		}
		Polling, Refused []any
	}
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		t.Fatal(err)
	}
	if state.Version == "" || !strings.HasPrefix(state.Upstream, "http://127.0.0.1:") || state.Dialect != "service" || state.Guarded || state.Store.Kind != "memory" || state.Store.Replicas != 1 || state.Polling == nil || state.Refused == nil {
		t.Error(text)
	}
	get(t, gateway+"/gitignore/templates")
	if _, text := get(t, admin+"/api/v1/requests"); !strings.Contains(text, `"why": "Miss: no response was stored for this caller; the upstream responded with 200. The response was stored`) {
		t.Error(text)
	}
	if _, text := get(t, admin+"/api/v1/series"); !strings.Contains(text, `"operation":"gitignore/list-templates"`) {
		t.Error(text)
	}
	if _, text := get(t, admin); !strings.Contains(text, "/api/v1/events") {
		t.Errorf("curl gets %s", text)
	}
}
