# The scenario of gh: it does what its users do, and says of each step what came of it.
set -eu

export GH_HOST="${WEIR#https://}" GH_ENTERPRISE_TOKEN="$TOKEN"
gh api rate_limit --jq '"rate-limit: \(.resources.core.remaining) of \(.resources.core.limit) left"'

gh auth status # that the token is valid, and has the scopes that gh wants

watchers=$(gh api --paginate 'repos/acme/widgets/subscribers?per_page=30' --jq '.[].login' | sort -u | wc -l)
[ "$watchers" -eq 64 ]
echo "pagination: $watchers watchers"

# What an answer's field says; fields come before the body.
field() { tr -d '\r' | sed -n "s/^$1: //Ip;/^\$/q"; }

for _ in 1 2; do
	echo "reference: $(gh api -i gitignore/templates/Go | field cache-status)"
done

weeks=$(gh api repos/acme/widgets/stats/commit_activity --jq length)
[ "$weeks" -eq 52 ]
echo "statistics: $weeks weeks"

etag=$(gh api -i orgs/acme/members | field etag)
said=$(gh api -i -H "If-None-Match: $etag" orgs/acme/members 2>&1) && exit 1 # 304 is no success to gh
echo "$said" | grep -q '^HTTP/2.0 304'
echo "conditional: 304 to $etag"

login=$(gh api graphql -f query='{viewer{login}}' --jq .data.viewer.login)
[ "$login" = acme-owner ]
echo "graphql: $login"

[ "$(gh search issues gear --limit 3 --json number --jq length)" -eq 3 ]
commit=$(gh api -X GET search/commits -f q=gear --jq '.items[0].sha')

# gh waits for nothing: it says what it was told, and fails. until_refused runs a command
# until it does, and leaves what it said in $said, its last sentence in $last, and the
# seconds that it was told in $seconds.
until_refused() {
	for n in 1 2 3 4 5 6 7 8 9 10; do
		if ! said=$("$@" -i -f "$counted=gear$n" 2>&1); then
			last=$(echo "$said" | sed -n 's/.*gh: /gh: /p')
			seconds=$(echo "$said" | field retry-after)
			return 0
		fi
	done
	return 1
}
counted=q
until_refused gh api -X GET search/commits
case $last in *'API rate limit exceeded'*'(HTTP 403)'*) ;; *) echo "$said"; exit 1 ;; esac
echo "primary: $((n - 1)) more searches, then exit status 1: $last"
sleep "$seconds"
gh api -X GET search/commits -f q=late >/dev/null
echo "primary: answered after $seconds s"

counted=tag
until_refused gh api repos/acme/widgets/git/tags -f message='made by gh' -f type=commit -f "object=$commit"
case $last in *'secondary rate limit'*'(HTTP 403)'*) ;; *) echo "$said"; exit 1 ;; esac
echo "write: $((n - 1)) tags"
echo "secondary: then exit status 1: $last"
sleep "$seconds"
gh api repos/acme/widgets/git/tags -f message='made by gh' -f type=commit -f "object=$commit" -f tag=late >/dev/null
echo "secondary: answered after $seconds s"
