//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// TestTerraformRecipe refreshes and applies resources like the provider.
func TestTerraformRecipe(t *testing.T) {
	r := startRecipe(t, "terraform.md")
	base := regexp.MustCompile(`base_url += "https://weir\.example\.com/"`)
	if hcl := r.block("hcl"); !base.MatchString(hcl) {
		t.Fatalf("no base_url in\n%s", hcl)
	}
	args := []string{r.url + "/", filepath.Join(r.dir, "state.json"), "widgets", "secret"}
	for i := range 10 {
		args = append(args, fmt.Sprintf("spare-%d", i))
	}
	began := time.Now()
	if got, spent := r.run(installed(t, "terraform"), args...); got != "12 created, 36 read, 0 not modified\n" || spent != 48 {
		t.Errorf("apply: spent %d: %s", spent, got)
	}
	if elapsed := time.Since(began); elapsed > 10*time.Second {
		t.Errorf("apply with 12 writes took %s; with the provider's own delay it would take 11s", elapsed)
	}
	if got, spent := r.run(installed(t, "terraform"), args...); got != "0 created, 0 read, 36 not modified\n" || spent != 0 {
		t.Errorf("plan: spent %d: %s", spent, got)
	}
	r.expire()
	if got, spent := r.run(installed(t, "terraform"), args...); got != "0 created, 0 read, 36 not modified\n" || spent != 0 {
		t.Errorf("plan after the responses expired: spent %d: %s", spent, got)
	}
	r.checkSpending()
}
