package service

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// world is the state. It is guarded by Service.mu, but for tokens and what tells
// accounts apart, which never change.
type world struct {
	apps map[string]int // made from manifests: their numbers, by code

	invitations int // how many there have been, which is the newest's number
	lastRuleset int // the highest number of a ruleset

	tokens       map[string]caller
	accounts     map[string]*account // by login
	repositories []*repository

	configurations []*configuration // by ascending id; never empty
	migrations     []*migration     // by ascending id; never empty
}

// account is a user or, with members, an organization.
type account struct {
	id    int
	login string
	name  string
	email string
	// shown is how it is shown at the base shownAt.
	cachedObject object
	cachedBase   string
	members      map[string]*membership // by login; nil for a user
	rulesets     []*ruleset

	description   string                 // of an organization
	formerMembers map[string]*membership // by login: who was removed, as they were; none of members
	teams         []*team                // by number
	roles         []*role                // by number; nil where the feature is not enabled
	invitations   []*invitation          // pending and failed, by number

	defaults []newRepositories // what new repositories of an organization get

	// evaluates is whether the plan lets administrators try rulesets out (Document
	// A section 4.9).
	canEvaluate bool
}

type membership struct {
	user      *account
	admin     bool
	public    bool // shown to everybody
	twoFactor bool
	// securityManager may administer the security of the code.
	securityManager bool
}

type repository struct {
	id            int
	owner         *account
	name          string
	description   string
	language      string
	defaultBranch string
	private       bool
	created       time.Time
	pushed        time.Time
	commits       []commit // oldest first
	files         []file
	issues        []issue
	subscriptions subscriptions
	rulesets      []*ruleset
	properties    map[string]string // custom ones, by name
	tags          []*gitTag
	advisories    []advisory

	configuration *configuration // which it is attached to; nil for none
	locked        bool           // by a migration; nothing here unlocks it again
}

func (r *repository) fullName() string { return r.owner.login + "/" + r.name }

func (r *repository) visibility() string {
	if r.private {
		return "private"
	}
	return "public"
}

// head is the SHA of the default branch; empty without commits.
func (r *repository) head() string {
	if len(r.commits) == 0 {
		return ""
	}
	return r.commits[len(r.commits)-1].sha
}

type commit struct {
	sha       string
	author    *account
	at        time.Time // in the author's zone
	message   string
	additions int
	deletions int
	merge     bool
}

func (c commit) empty() bool { return c.additions == 0 && c.deletions == 0 }

type file struct {
	path    string
	content string
	size    int // of a file whose content is not held; else 0
}

// sha is the name of the file's blob: that which Git gives its content, so files with
// the same content share it. Where the content is not held it is another for each file.
func (f file) sha(r *repository) string {
	if f.size > 0 {
		return gitObjectName("blob", r.fullName()+"/"+f.path)
	}
	return gitObjectName("blob", f.content)
}

// gitName is the name that Git gives an object of a type.
func gitObjectName(kind, content string) string {
	sum := sha1.Sum(fmt.Appendf(nil, "%s %d\x00%s", kind, len(content), content))
	return hex.EncodeToString(sum[:])
}

type issue struct {
	number  int
	title   string
	body    string
	author  *account
	labels  []string
	open    bool
	created time.Time
}

// advisory is a public announcement about a vulnerability.
type advisory struct {
	id        string
	summary   string
	published time.Time
}

type subscription struct {
	user       *account
	subscribed bool
	ignored    bool
	created    time.Time
}

// subscriptions are those of a repository, in the order of their users' logins.
type subscriptions []*subscription

// of is a user's subscription, nil where there is none.
func (all subscriptions) forUser(u *account) *subscription {
	if at, found := all.find(u); found {
		return all[at]
	}
	return nil
}

// set puts a subscription in the place of its user's.
func (all *subscriptions) set(sub *subscription) {
	all.remove(sub.user)
	at, _ := all.find(sub.user)
	*all = slices.Insert(*all, at, sub)
}

func (all *subscriptions) remove(u *account) {
	if at, found := all.find(u); found {
		*all = slices.Delete(*all, at, at+1)
	}
}

func (all subscriptions) find(u *account) (at int, found bool) {
	return slices.BinarySearchFunc(all, u.login, func(sub *subscription, login string) int { return strings.Compare(sub.user.login, login) })
}

func itoa(n int) string { return strconv.Itoa(n) }

// stamp is a timestamp as the documents write it.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// installed is how many repositories and users an installation on an
// organization has (Document B section 8.1).
func (w *world) installationSize(login string) (repositories, users int) {
	for _, r := range w.repositories {
		if r.owner.login == login {
			repositories++
		}
	}
	return repositories, len(w.accounts[login].members)
}
