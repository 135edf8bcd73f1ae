# The scenario of gh performs the usual operations of its users and reports the result of each step.
set -eu

export GH_HOST="${WEIR#https://}" GH_ENTERPRISE_TOKEN="$TOKEN"
gh api rate_limit --jq '"rate-limit: \(.resources.core.remaining) of \(.resources.core.limit) left"'

gh auth status # fails if the token is invalid or lacks a scope that gh requires

watchers=$(gh api --paginate 'repos/acme/widgets/subscribers?per_page=30' --jq '.[].login' | sort -u | wc -l)
[ "$watchers" -eq 64 ]
echo "pagination: $watchers watchers"

# field NAME prints the value of a header field. The header precedes the body.
field() { tr -d '\r' | sed -n "s/^$1: //Ip;/^\$/q"; }

for _ in 1 2; do
	echo "reference: $(gh api -i gitignore/templates/Go | field cache-status)"
done

weeks=$(gh api repos/acme/widgets/stats/commit_activity --jq length)
[ "$weeks" -eq 52 ]
echo "statistics: $weeks weeks"

etag=$(gh api -i orgs/acme/members | field etag)
output=$(gh api -i -H "If-None-Match: $etag" orgs/acme/members 2>&1) && exit 1 # gh treats a 304 as an error
echo "$output" | grep -q '^HTTP/2.0 304'
echo "conditional: 304 to $etag"

login=$(gh api graphql -f query='{viewer{login}}' --jq .data.viewer.login)
[ "$login" = acme-owner ]
echo "graphql: $login"

export GH_REPO=acme/widgets
echo "graphql: $(gh pr list | wc -l) open pull requests, $(gh issue list | wc -l) open issues"
gh pr status | sed -n 's/^  #/graphql: #/p'
gh pr checks 34 | sort | cut -f 1,2 | tr '\t\n' ': ' | sed 's/^/graphql: /;s/ $/\n/'
gh repo view acme/widgets | sed -n 's/^description:/graphql:/p'
unset GH_REPO

[ "$(gh search issues gear --limit 3 --json number --jq length)" -eq 3 ]
commit=$(gh api -X GET search/commits -f q=gear --jq '.items[0].sha')

# gh does not wait: it prints the refusal and fails. until_refused repeats a command until it fails.
# It stores the output in $output, the error message in $message, and Retry-After in $seconds.
until_refused() {
	for n in 1 2 3 4 5 6 7 8 9 10; do
		if ! output=$("$@" -i -f "$parameter=gear$n" 2>&1); then
			message=$(echo "$output" | sed -n 's/.*gh: /gh: /p')
			seconds=$(echo "$output" | field retry-after)
			return 0
		fi
	done
	return 1
}
parameter=q
until_refused gh api -X GET search/commits
case $message in *'API rate limit exceeded'*'(HTTP 403)'*) ;; *) echo "$output"; exit 1 ;; esac
echo "primary: $((n - 1)) more searches, then exit status 1: $message"
sleep "$seconds"
gh api -X GET search/commits -f q=late >/dev/null
echo "primary: passed after $seconds s"

parameter=tag
until_refused gh api repos/acme/widgets/git/tags -f message='made by gh' -f type=commit -f "object=$commit"
case $message in *'secondary rate limit'*'(HTTP 403)'*) ;; *) echo "$output"; exit 1 ;; esac
echo "write: $((n - 1)) tags"
echo "secondary: then exit status 1: $message"
sleep "$seconds"
gh api repos/acme/widgets/git/tags -f message='made by gh' -f type=commit -f "object=$commit" -f tag=late >/dev/null
echo "secondary: passed after $seconds s"
