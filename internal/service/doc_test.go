package service

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestDocumentationNamesEndpointsTokensAndFaults reads docs/reference-service.md.
func TestDocumentationNamesEndpointsTokensAndFaults(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference-service.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"/_service/violations", "/_service/faults", "/_service/webhooks", "/_service/events", "/_service/deliveries"}
	for token := range tokens() {
		names = append(names, token)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Faults]()) {
		names = append(names, f.Tag.Get("json"))
	}
	runWithService(t, func(t *tester) {
		for _, r := range t.s.world.repositories {
			names = append(names, r.fullName())
		}
	})
	for _, name := range names {
		if !strings.Contains(string(text), name+"`") {
			t.Errorf("docs/reference-service.md does not name %s", name)
		}
	}
}
