package service

import (
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

func listSubscribers(s *Service, req *request) response {
	r := req.repo
	return list(req, "/repositories/"+itoa(r.id)+"/subscribers", watchersOf(r), func(a *account) object { return userObject(req, a) })
}

// subscriptionTarget returns the repository and the user of a subscription operation. It returns a 403 for callers
// without a user.
func (s *Service) subscriptionTarget(req *request) (*repository, *account, *response) {
	r, u := req.repo, s.world.user(req.caller)
	if u == nil {
		return nil, nil, refuse(http.StatusForbidden, "Only users watch repositories")
	}
	return r, u, nil
}

func subscriptionObject(req *request, r *repository, sub *subscription) object {
	api := req.base + "/repos/" + r.fullName()
	return object{
		{"subscribed", sub.subscribed}, {"ignored", sub.ignored}, {"reason", nil}, {"created_at", timestamp(sub.created)},
		{"url", api + "/subscription"}, {"repository_url", api},
	}
}

func getSubscription(s *Service, req *request) response {
	r, u, problem := s.subscriptionTarget(req)
	if problem != nil {
		return *problem
	}
	sub := r.subscriptions.forUser(u)
	if sub == nil {
		return notFound()
	}
	return response{status: http.StatusOK, body: subscriptionObject(req, r, sub)}
}

// setSubscription makes the caller watch or ignore the repository (Document A section 3). Absent members of the body
// keep their value. Ignoring a repository ends watching.
func setSubscription(s *Service, req *request) response {
	r, u, problem := s.subscriptionTarget(req)
	if problem != nil {
		return *problem
	}
	var wanted struct {
		Subscribed *bool `json:"subscribed"`
		Ignored    *bool `json:"ignored"`
	}
	if problem := s.decode(req.raw, "Subscription", &wanted); problem != nil {
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
	return response{status: http.StatusOK, body: subscriptionObject(req, r, sub)}
}

func deleteSubscription(s *Service, req *request) response {
	r, u, problem := s.subscriptionTarget(req)
	if problem != nil {
		return *problem
	}
	r.subscriptions.remove(u)
	return response{status: http.StatusNoContent}
}

// watchedRepositories returns the repositories that a user watches and the caller may see.
func (s *Service) watchedRepositories(req *request, u *account) []*repository {
	var all []*repository
	for _, r := range s.world.repositories {
		if sub := r.subscriptions.forUser(u); sub != nil && sub.subscribed && s.world.isVisible(r, req.caller) {
			all = append(all, r)
		}
	}
	return all
}

func listMyWatched(s *Service, req *request) response {
	u := s.world.user(req.caller)
	if u == nil {
		return fail(http.StatusForbidden, "Only users watch repositories")
	}
	return list(req, "/user/subscriptions", s.watchedRepositories(req, u), func(r *repository) object { return repositoryObject(s, req, r) })
}

// findUser returns the user that a request names by login or ID, or nil for an unknown user.
func (s *Service) findUser(req *request) *account {
	for _, a := range s.world.accounts {
		if a.members == nil && (a.login == req.params["username"] || itoa(a.id) == req.params["user_id"]) {
			return a
		}
	}
	return nil
}

func listWatchedOfUser(s *Service, req *request) response {
	u := s.findUser(req)
	if u == nil {
		return notFound()
	}
	return list(req, "/user/"+itoa(u.id)+"/subscriptions", s.watchedRepositories(req, u), func(r *repository) object { return repositoryObject(s, req, r) })
}
