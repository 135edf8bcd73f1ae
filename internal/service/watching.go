package service

import (
	"cmp"
	"net/http"
	"time"
)

// watchersOf returns the users that watch a repository, sorted by login.
func watchersOf(r *repository) []*account {
	var all []*account
	for _, sub := range r.subscriptions {
		if sub.subscribed {
			all = append(all, sub.user)
		}
	}
	return all
}

func listSubscribers(_ *Service, req *request) response {
	return listOf(watchersOf(req.repo), func(a *account) object { return userObject(req, a) })
}

// withUser returns a handler that responds with 403 to callers without a user.
func withUser(handle func(*Service, *request, *account) response) handler {
	return func(s *Service, req *request) response {
		u := s.world.user(req.caller)
		if u == nil {
			return fail(http.StatusForbidden, "Only users watch repositories")
		}
		return handle(s, req, u)
	}
}

func subscriptionObject(req *request, sub *subscription) object {
	api := req.base + req.repo.path()
	return object{
		{"subscribed", sub.subscribed}, {"ignored", sub.ignored}, {"reason", nil}, {"created_at", timestamp(sub.created)},
		{"url", api + "/subscription"}, {"repository_url", api},
	}
}

func getSubscription(_ *Service, req *request, u *account) response {
	sub := req.repo.subscriptions.forUser(u)
	if sub == nil {
		return notFound()
	}
	return response{status: http.StatusOK, body: subscriptionObject(req, sub)}
}

// setSubscription makes the caller watch or ignore the repository (Document A section 3). Absent members of the body
// keep their value. Ignoring a repository ends watching.
func setSubscription(_ *Service, req *request, u *account) response {
	r := req.repo
	var wanted struct {
		Subscribed *bool `json:"subscribed"`
		Ignored    *bool `json:"ignored"`
	}
	if problem := readBody(req.raw, "Subscription", &wanted); problem != nil {
		return *problem
	}
	sub := r.subscriptions.forUser(u)
	if sub == nil {
		sub = &subscription{user: u, created: time.Now()}
		r.subscriptions.set(sub)
	}
	if wanted.Subscribed != nil {
		sub.subscribed = *wanted.Subscribed
		sub.ignored = sub.ignored && !sub.subscribed
	}
	if wanted.Ignored != nil {
		sub.ignored = *wanted.Ignored
		sub.subscribed = sub.subscribed && !sub.ignored
	}
	if !sub.subscribed && !sub.ignored {
		r.subscriptions.remove(u) // not subscribed, not ignored (Document A section 4.4)
	}
	return response{status: http.StatusOK, body: subscriptionObject(req, sub)}
}

func deleteSubscription(_ *Service, req *request, u *account) response {
	req.repo.subscriptions.remove(u)
	return response{status: http.StatusNoContent}
}

// listWatched lists the repositories that a user watches and the caller may see.
func listWatched(s *Service, req *request, u *account) response {
	var all []*repository
	for _, r := range s.world.repositories {
		if sub := r.subscriptions.forUser(u); sub != nil && sub.subscribed && s.world.isVisible(r, req.caller) {
			all = append(all, r)
		}
	}
	return listOf(all, func(r *repository) object { return repositoryObject(s, req, r) })
}

func listWatchedOfUser(s *Service, req *request) response {
	u := s.world.accountNamed(false, cmp.Or(req.params["username"], req.params["user_id"]))
	if u == nil {
		return notFound()
	}
	return listWatched(s, req, u)
}
