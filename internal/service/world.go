package service

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// world is the state of the service. Service.mu guards it, except the tokens and the IDs and logins of accounts, which
// never change.
type world struct {
	objects
	byID []*account // by ascending ID

	apps map[string]int // IDs of the apps created from manifests, by code

	invitations int // number of invitations so far, which is the ID of the newest invitation
	lastRuleset int // highest ID of a ruleset
	lastTeam    int // number of teams so far

	tokens       map[string]caller
	accounts     map[string]*account // by login
	repositories []*repository

	configurations []*configuration // by ascending id; never empty
	migrations     []*migration     // by ascending id; never empty
}

// account is a user or an organization. Only organizations have members.
type account struct {
	id    int
	login string
	name  string
	email string
	// cachedObject is the JSON object of the account for the base URL cachedBase.
	cachedObject object
	cachedBase   string
	members      map[string]*membership // by login; nil for a user
	rulesets     []*ruleset

	// Only organizations use the following fields.
	description   string
	formerMembers map[string]*membership // removed members with their former roles, by login
	teams         []*team                // by ascending ID
	roles         []*role                // by ascending ID; nil if roles are not enabled
	invitations   []*invitation          // pending and failed, by ascending ID

	defaults []newRepositoryDefault // default configurations of new repositories

	// canEvaluate allows the enforcement "evaluate" of rulesets (Document A section 4.9).
	canEvaluate bool
}

type membership struct {
	user      *account
	admin     bool
	public    bool // visible to every caller
	twoFactor bool
	// securityManager allows the member to administer code security configurations.
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
	subscriptions subscriptions
	rulesets      []*ruleset
	properties    map[string]string // custom properties, by name
	advisories    []advisory

	gone       bool // deleted
	fields     doc  // changed by PATCH
	lastNumber int  // of the issues and pull requests
	git        *git
	fill       func() // adds the seeded content on first use; nil without such content

	configuration *configuration // the attached code security configuration, or nil
	locked        bool           // locked by a migration, permanently
}

// filled returns the repository with its content. Every use of git and of stored objects needs it.
func (r *repository) filled() *repository {
	if fill := r.fill; fill != nil {
		r.fill = nil
		fill()
	}
	return r
}

func (r *repository) fullName() string { return r.owner.login + "/" + r.name }

func (r *repository) visibility() string {
	if r.private {
		return "private"
	}
	return "public"
}

// head returns the SHA of the default branch, or "" without commits.
func (r *repository) head() string { return r.filled().git.head() }

// history returns the commits of the default branch, oldest first.
func (r *repository) history() []*commit { return r.filled().git.mainLine() }

// file is a file of the default branch.
type file struct{ path, sha, content string }

// files returns the files of the default branch by path.
func (r *repository) files() (all []file) {
	blobs := r.filled().git.files(r.head())
	for _, path := range slices.Sorted(maps.Keys(blobs)) {
		all = append(all, file{path, blobs[path], r.git.blobs[blobs[path]]})
	}
	return all
}

// gitObjectName returns the Git object name of an object type and its content.
func gitObjectName(kind, content string) string {
	sum := sha1.Sum(fmt.Appendf(nil, "%s %d\x00%s", kind, len(content), content))
	return hex.EncodeToString(sum[:])
}

// advisory is a published security advisory.
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

// subscriptions holds the subscriptions of a repository, sorted by login.
type subscriptions []*subscription

// forUser returns the subscription of a user, or nil if the user has no subscription.
func (all subscriptions) forUser(u *account) *subscription {
	if at := slices.IndexFunc(all, func(sub *subscription) bool { return sub.user == u }); at >= 0 {
		return all[at]
	}
	return nil
}

// set adds a subscription or replaces the subscription of the same user.
func (all *subscriptions) set(sub *subscription) {
	all.remove(sub.user)
	*all = append(*all, sub)
	slices.SortFunc(*all, func(a, b *subscription) int { return strings.Compare(a.user.login, b.user.login) })
}

func (all *subscriptions) remove(u *account) {
	*all = slices.DeleteFunc(*all, func(sub *subscription) bool { return sub.user == u })
}

func itoa(n int) string { return strconv.Itoa(n) }

// timestamp formats a time in the format of the documents.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// installationSize returns the number of repositories and users of an installation on an organization (Document B
// section 8.1).
func (w *world) installationSize(login string) (repositories, users int) {
	for _, r := range w.repositories {
		if r.owner.login == login {
			repositories++
		}
	}
	return repositories, len(w.accounts[login].members)
}
