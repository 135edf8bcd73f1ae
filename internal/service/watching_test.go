package service

import (
	"net/http"
	"strings"
	"testing"
)

func TestIgnoredRepositoriesAreNotWatched(t *testing.T) {
	runWithService(t, func(t *tester) {
		for name, body := range map[string]string{
			"widgets": `{"ignored":true}`, "monolith": `{"subscribed":true}`, "empty": `{"subscribed":false}`, "secret": `{"subscribed":true,"ignored":true}`,
		} {
			t.wantStatus(t.do("member", http.MethodPut, "/repos/acme/"+name+"/subscription", body), 200)
		}
		for _, target := range []string{"/user/subscriptions", "/users/acme-member/subscriptions", "/user/2/subscriptions"} {
			watched := decode[[]jsonObject](t, t.get("member", target))
			if len(watched) != 1 || watched[0]["name"] != "monolith" {
				t.Errorf("%s: got %v, want monolith only", target, watched)
			}
		}
		for _, u := range decode[[]jsonObject](t, t.get("member", "/repos/acme/widgets/subscribers?per_page=100")) {
			if u["login"] == "acme-member" {
				t.Error("a user that ignores the repository is listed as a watcher")
			}
		}
	})
}

func TestUsersCanBeNamedByID(t *testing.T) {
	runWithService(t, func(t *tester) {
		const path = "/repos/acme/monolith/subscription"
		t.wantStatus(t.do("member", http.MethodPut, path, `{"subscribed":true}`), 200)
		t.wantStatus(t.do("member", http.MethodPut, strings.Replace(path, "monolith", "widgets", 1), `{"subscribed":true}`), 200)
		w := t.get("", "/users/acme-member/subscriptions?per_page=1")
		if link := w.Header().Get("Link"); !strings.HasPrefix(link, `<http://api.test/user/2/subscriptions?per_page=1&page=2>; rel="next"`) {
			t.Errorf("got Link %s", link)
		}
		second := decode[[]jsonObject](t, t.get("", "/user/2/subscriptions?per_page=1&page=2"))
		if len(second) != 1 || second[0]["name"] != "monolith" {
			t.Errorf("got second page %v", second)
		}
		t.wantStatus(t.get("", "/user/4/subscriptions"), 404) // ID of an organization
		t.wantStatus(t.get("", "/users/acme/subscriptions"), 404)
		t.wantStatus(t.get("", "/user/999/subscriptions"), 404)
	})
}
