// Package browsertest looks at pages with a real browser, for tests: headless Chromium,
// driven over the DevTools protocol.
//
// Invariants: a browser has a profile of its own, asks nobody but the pages under test,
// and ends with its test; what a page logs as an error, and every breach of its content
// security policy, fails the test. It is not for production code.
package browsertest

import (
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

// patience is how long anything may take that a test waits for.
const patience = time.Minute

// Browser is a browser with one page.
type Browser struct {
	testing.TB
	ctx context.Context

	mu        sync.Mutex
	complains []string
	expected  []string
}

// Start starts chromium, or what WEIR_CHROMIUM names.
func Start(t testing.TB) *Browser {
	t.Helper()
	program := os.Getenv("WEIR_CHROMIUM")
	if program == "" {
		program = "chromium"
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.NoFirstRun, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Headless,
		chromedp.WSURLReadTimeout(patience), chromedp.Env("HOME=" + t.TempDir()),
	}
	for _, flag := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-default-apps", "disable-extensions", "disable-dev-shm-usage", "hide-scrollbars"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, leave := chromedp.NewContext(allocator)
	b := &Browser{TB: t, ctx: ctx}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser
		leave()
		end()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, c := range b.complains {
			if b.unexpected(c) {
				t.Errorf("the page complains: %s", c)
			}
		}
	})
	err := chromedp.Listen(ctx, b.hear)
	if err == nil {
		err = chromedp.Do(ctx, call(log.Enable, cdp.Empty{}), call(runtime.Enable, cdp.Empty{}))
	}
	if err != nil {
		t.Fatalf("%s cannot be started: install chromium, or run make test: %v", program, err)
	}
	return b
}

// call is a command of the protocol, as an action.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, c, params)
		return v, err
	}
}

// hear notes what the page complains about.
func (b *Browser) hear(event any) {
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
		b.complains = append(b.complains, text)
	}
}

// Expect forgives complaints that a test causes, before or after: each that holds one of
// the texts.
func (b *Browser) Expect(texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, texts...)
}

// unexpected reports whether a complaint is one that no test causes; mu is held.
func (b *Browser) unexpected(complaint string) bool {
	return !slices.ContainsFunc(b.expected, func(text string) bool { return strings.Contains(complaint, text) })
}

// Do does what a user would.
func (b *Browser) Do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// Open goes to a page.
func (b *Browser) Open(url string) {
	b.Helper()
	b.Do(chromedp.Navigate(url))
}

// Value is what an expression of JavaScript gives; a promise is waited for.
func Value[T any](b *Browser, expression string) T {
	b.Helper()
	v, err := evaluate[T](b, expression)
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return v
}

func evaluate[T any](b *Browser, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Eventually waits until an expression of JavaScript is true, and returns how long that
// took. While a page is on its way it is not.
func (b *Browser) Eventually(what, expression string) time.Duration {
	b.Helper()
	began := time.Now()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		holds, err := evaluate[bool](b, "Promise.resolve("+expression+").then(Boolean)")
		if holds && err == nil {
			return time.Since(began)
		}
		if <-ticker.C; time.Since(began) > patience {
			b.Fatalf("it did not come true that %s (%v):\n%s", what, err, Value[string](b, "document.body.innerText"))
		}
	}
}

// Look sets the width and height of the window, in pixels, and whether the user likes it
// dark.
func (b *Browser) Look(width, height int64, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.Do(chromedp.EmulateViewport(width, height), call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}}))
}

// Shot writes a picture of the whole page, or of what the window shows, into a folder.
func (b *Browser) Shot(dir, name string, whole bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	take := chromedp.CaptureScreenshot()
	if whole {
		Value[bool](b, "scrollTo({top: 0, behavior: 'instant'}), document.activeElement.blur(), true")
		take = chromedp.FullScreenshot(100)
	}
	picture, err := chromedp.Run(ctx, take)
	if err == nil {
		err = os.MkdirAll(dir, 0o750)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
}
