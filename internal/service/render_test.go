package service

import "testing"

// TestPermissionsOfARepository are what its reader is to it, or what a token without
// a user may.
func TestPermissionsOfARepository(t *testing.T) {
	runWithService(t, func(t *tester) {
		for credential, want := range map[string]jsonObject{
			"owner":    {"admin": true, "push": true, "pull": true},
			"member":   {"admin": false, "push": true, "pull": true},
			"outsider": {"admin": false, "push": false, "pull": true},
			"app":      {"admin": true, "push": true, "pull": true},
			"workflow": {"admin": false, "push": true, "pull": true},
			"":         {"admin": false, "push": false, "pull": true},
		} {
			watched := decode[[]jsonObject](t, t.get(credential, "/users/watcher-01/subscriptions"))
			t.wantEqual("permissions of "+credential, want, watched[0]["permissions"])
		}
	})
}

// TestNoTwoThingsShareANodeID: kinds are told by what their node ids begin with.
func TestNoTwoThingsShareANodeID(t *testing.T) {
	kinds := map[string]string{}
	for kind, prefix := range nodePrefixes {
		if kinds[prefix] != "" || prefix == "" {
			t.Errorf("%s and %s have %q", kind, kinds[prefix], prefix)
		}
		kinds[prefix] = kind
	}
	for prefix, kind := range map[string]string{"R": "Repository", "U": "User", "O": "Organization"} {
		if kinds[prefix] != kind {
			t.Errorf("%q stands for %s", prefix, kinds[prefix])
		}
	}
}
