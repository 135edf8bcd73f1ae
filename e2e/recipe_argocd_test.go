//go:build e2e

package e2e

import "testing"

func TestArgoCDRecipe(t *testing.T) {
	r := startRecipe(t, "argocd.md", "argocd")
	o, n := r.run(r.tool("argocd"), "http://"+r.address+"/", "acme", "widgets")
	t.Log(o, n)
	o, n = r.run(r.tool("argocd"), "http://"+r.address+"/", "acme", "widgets")
	t.Log(o, n)
	r.checkAttribution()
}
