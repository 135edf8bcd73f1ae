//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browserTimeout limits every wait of a browser test.
const browserTimeout = time.Minute

// browser is a page in a headless Chromium, driven over the DevTools protocol. Each page has its own profile. Errors of the
// page, and violations of its content security policy, fail the test.
type browser struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	errors   []string
	expected []string // parts of the errors that the test causes
}

// chromium starts the Chromium that all tests share. WEIR_CHROMIUM overrides the program. The tests end it in runTests.
var chromium = sync.OnceValues(func() (ctx context.Context, err error) {
	dir, err := os.MkdirTemp("", "weir-chromium")
	if err != nil {
		return nil, err
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(cmp.Or(os.Getenv("WEIR_CHROMIUM"), "chromium")), chromedp.UserDataDir(dir), chromedp.NoFirstRun, chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Headless, chromedp.WSURLReadTimeout(browserTimeout), chromedp.Env("HOME=" + dir),
	}
	for _, flag := range []string{
		"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-default-apps", "disable-extensions",
		"disable-dev-shm-usage", "hide-scrollbars", "disable-background-timer-throttling", "disable-renderer-backgrounding",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(allocator)
	closeChromium = func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has exited
		_ = os.RemoveAll(dir)
	}
	return ctx, chromedp.Do(ctx, call(log.Enable, cdp.Empty{}))
})

// closeChromium ends the Chromium, if it runs.
var closeChromium = func() {}

// openPage opens a page with a wide window and a light theme.
func openPage(t testing.TB, url string) *browser {
	t.Helper()
	shared, err := chromium()
	stopIf(t, err != nil, "start chromium: %v; install chromium or run make e2e", err)
	ctx, closePage := chromedp.NewContext(shared, chromedp.WithNewBrowserContext())
	b := &browser{TB: t, ctx: ctx}
	t.Cleanup(func() {
		closePage()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.errors {
			failIf(t, !slices.ContainsFunc(b.expected, func(part string) bool { return strings.Contains(e, part) }), "error of the page: %s", e)
		}
	})
	must(t, chromedp.Listen(ctx, b.record))
	must(t, chromedp.Do(ctx, call(log.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{})))
	b.setWindow(1440, 900, false)
	b.open(url)
	return b
}

// openDashboard opens a dashboard, and waits for its data.
func openDashboard(t testing.TB, url string) *browser {
	t.Helper()
	b := openPage(t, url)
	b.eventually("the page is live", live)
	return b
}

// call returns an action that sends a command of the DevTools protocol.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, c, params)
		return v, err
	}
}

// record records the errors of the page.
func (b *browser) record(event any) {
	var text string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			for _, argument := range e.Args {
				text += string(argument.Value) + argument.Description + " "
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			text = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
	if text != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.errors = append(b.errors, text)
	}
}

// expect accepts errors that contain one of the texts, before and after the call.
func (b *browser) expect(texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, texts...)
}

// do runs actions of a user.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserTimeout)
	defer cancel()
	must(b, chromedp.Do(ctx, actions...))
}

// open navigates to a page.
func (b *browser) open(url string) {
	b.Helper()
	b.do(chromedp.Navigate(url))
}

// value evaluates a JavaScript expression. If the result is a promise, value waits for it.
func value[T any](b *browser, expression string) T {
	b.Helper()
	v, err := evaluate[T](b, expression)
	stopIf(b, err != nil, "%s: %v", expression, err)
	return v
}

func evaluate[T any](b *browser, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, browserTimeout)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// eventually waits until a JavaScript expression is true, and returns the duration of the wait. The expression counts
// as false while a page is loading.
func (b *browser) eventually(condition, expression string) time.Duration {
	b.Helper()
	began := time.Now()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		holds, err := evaluate[bool](b, "Promise.resolve("+expression+").then(Boolean)")
		if holds && err == nil {
			return time.Since(began)
		}
		if <-ticker.C; time.Since(began) > browserTimeout {
			b.Fatalf("condition not reached: %s (%v):\n%s", condition, err, value[string](b, "document.body.innerText"))
		}
	}
}

// setWindow sets the size of the window in pixels, and whether the user prefers a dark theme.
func (b *browser) setWindow(width, height int64, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(chromedp.EmulateViewport(width, height), call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}}))
}

// screenshots is the folder of the screenshots, which people review.
const screenshots = "../bin/artefacts/screenshots"

// screenshot writes a picture of the whole page, or of the visible part, to a PNG file.
func (b *browser) screenshot(name string, whole bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserTimeout)
	defer cancel()
	capture := chromedp.CaptureScreenshot()
	if whole {
		value[bool](b, "scrollTo({top: 0, behavior: 'instant'}), document.activeElement.blur(), true")
		capture = chromedp.FullScreenshot(100)
	}
	picture, err := chromedp.Run(ctx, capture)
	if err == nil {
		err = os.MkdirAll(screenshots, 0o750)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(screenshots, name+".png"), picture, 0o600)
	}
	must(b, err)
}
