package service

import "testing"

func TestRepositoryPermissionsDependOnTheCaller(t *testing.T) {
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

func TestNodeIDPrefixesAreUnique(t *testing.T) {
	kinds := map[string]string{}
	for kind, prefix := range nodePrefixes {
		if kinds[prefix] != "" || prefix == "" {
			t.Errorf("%s and %s share the prefix %q", kind, kinds[prefix], prefix)
		}
		kinds[prefix] = kind
	}
	for prefix, kind := range map[string]string{"R": "Repository", "U": "User", "O": "Organization"} {
		if kinds[prefix] != kind {
			t.Errorf("prefix %q belongs to %s", prefix, kinds[prefix])
		}
	}
}
