package admin

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// dashboard holds the static files. There is no build step.
//
//go:embed dashboard
var dashboard embed.FS

// pagePolicy limits the dashboard to its own files and its own listener. Trusted types prevent scripts from creating
// HTML from text.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// mediaTypeOf returns the media type of a file. Files of other types are not served.
func mediaTypeOf(name string) (mediaType string, ok bool) {
	mediaType, ok = map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}[path.Ext(name)]
	return mediaType, ok
}

// file returns a handler for a file of the dashboard.
func file(name string) http.HandlerFunc {
	text, err := dashboard.ReadFile("dashboard/" + name)
	if err != nil {
		panic(err) // the file is embedded
	}
	mediaType, _ := mediaTypeOf(name)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Content-Security-Policy", pagePolicy)
		_, _ = w.Write(text)
	}
}

// assets returns the scripts, styles and images. These files are public, because they contain no data of this gateway.
func assets() []page {
	var all []page
	err := fs.WalkDir(dashboard, "dashboard", func(name string, d fs.DirEntry, err error) error {
		name = strings.TrimPrefix(name, "dashboard/")
		if _, ok := mediaTypeOf(name); ok && !d.IsDir() && path.Ext(name) != ".html" {
			all = append(all, page{method: http.MethodGet, path: "/assets/" + name, public: true, serve: file(name)})
		}
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("admin: %v", err)) // the files are embedded
	}
	return all
}

// acceptsHTML reports whether the client is a browser.
func acceptsHTML(r *http.Request) bool {
	return strings.Contains(strings.Join(r.Header["Accept"], ","), "text/html")
}
