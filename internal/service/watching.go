package service

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// watchersOf returns the users that watch a repository, sorted by login.
func watchersOf(r *repository) []*account {
	var all []*account
	for u, sub := range r.subscriptions {
		if sub.subscribed {
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b *account) int { return strings.Compare(a.login, b.login) })
	return all
}

func subscriptionObject(req *request, sub *subscription) object {
	api := req.base + req.repo.path()
	return object{
		{"subscribed", sub.subscribed}, {"ignored", sub.ignored}, {"reason", nil}, {"created_at", timestamp(sub.created)},
		{"url", api + "/subscription"}, {"repository_url", api},
	}
}

func getSubscription(s *Service, req *request) response {
	sub := req.repo.subscriptions[s.world.user(req.caller)]
	if sub == nil {
		return notFound()
	}
	return respond(subscriptionObject(req, sub))
}

// setSubscription makes the caller watch or ignore the repository (Document A section 3). Absent members of the body
// keep their value. Ignoring a repository ends watching.
func setSubscription(s *Service, req *request) response {
	r, u := req.repo, s.world.user(req.caller)
	var wanted struct {
		Subscribed *bool `json:"subscribed"`
		Ignored    *bool `json:"ignored"`
	}
	if problem := readBody(req.raw, "Subscription", &wanted); problem != nil {
		return *problem
	}
	sub := r.subscriptions[u]
	if sub == nil {
		sub = &subscription{created: time.Now()}
		r.subscriptions[u] = sub
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
		delete(r.subscriptions, u) // not subscribed, not ignored (Document A section 4.4)
	}
	return respond(subscriptionObject(req, sub))
}

// listWatched lists the repositories that a user, or the caller, watches and that the caller may see.
func listWatched(s *Service, req *request) response {
	u := s.world.user(req.caller)
	if name := cmp.Or(req.params["username"], req.params["user_id"]); name != "" {
		u = s.world.accountNamed(false, name)
	}
	if u == nil {
		return notFound()
	}
	watched := slices.DeleteFunc(s.world.visible(req.caller), func(r *repository) bool { return !slices.Contains(watchersOf(r), u) })
	return listOf(watched, func(r *repository) object { return repositoryObject(s, req, r) })
}
