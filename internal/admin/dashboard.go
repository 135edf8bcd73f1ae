package admin

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// dashboard is what browsers are given: as it was written, without a step between.
//
//go:embed dashboard
var dashboard embed.FS

// pagePolicy lets the dashboard run its own files and talk to its own listener, and
// nothing else; no script can turn text into elements.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// served are the types of the files that browsers are given; others stay at home.
func served(name string) (mediaType string, ok bool) {
	mediaType, ok = map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}[path.Ext(name)]
	return mediaType, ok
}

// file answers with a file of the dashboard.
func file(name string) http.HandlerFunc {
	text, err := dashboard.ReadFile("dashboard/" + name)
	if err != nil {
		panic(err) // it is part of the program
	}
	mediaType, _ := served(name)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Content-Security-Policy", pagePolicy)
		_, _ = w.Write(text)
	}
}

// assets are the pages that the dashboard is made of, beside itself. They are the same
// everywhere and hold nothing of this gateway, so they are open.
func assets() []page {
	var all []page
	err := fs.WalkDir(dashboard, "dashboard", func(name string, d fs.DirEntry, err error) error {
		name = strings.TrimPrefix(name, "dashboard/")
		if _, ok := served(name); ok && !d.IsDir() && path.Ext(name) != ".html" {
			all = append(all, page{method: http.MethodGet, path: "/assets/" + name, open: true, answer: file(name)})
		}
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("admin: %v", err)) // it is part of the program
	}
	return all
}

// reads reports whether a client takes HTML: browsers say so, programs do not.
func reads(r *http.Request) bool {
	return strings.Contains(strings.Join(r.Header["Accept"], ","), "text/html")
}
