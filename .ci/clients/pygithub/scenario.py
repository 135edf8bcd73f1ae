"""The scenario of PyGithub performs the usual operations of its users and reports the result of each step."""
import os
import time

import github
from urllib3.util import Retry

g = github.Github(os.environ["TOKEN"], base_url=os.environ["WEIR"])
limits = g.get_rate_limit()

assert limits.core.limit == 5000, limits
print(f"rate-limit: {limits.core.remaining} of {limits.core.limit} left")

# The documented API has no operation for the repository itself; lazy=True sends no request for it.
repository = g.get_repo("acme/widgets", lazy=True)
watchers = [w.login for w in repository.get_subscribers()]
assert len(set(watchers)) == 64, watchers
print(f"pagination: {len(watchers)} watchers")

for _ in range(2):
    template = g.get_gitignore_template("Go")
    assert template.name == "Go", template
    print(f"reference: {template.raw_headers['cache-status']}")

weeks = repository.get_stats_commit_activity()
assert len(weeks) == 52, weeks
print(f"statistics: {len(weeks)} weeks")

requester = g._Github__requester  # this version has no public method for header fields or GraphQL
_, headers, _ = requester.requestJson("GET", "/orgs/acme/members")
status, _, _ = requester.requestJson("GET", "/orgs/acme/members", headers={"If-None-Match": headers["etag"]})
assert status == 304, status
print(f"conditional: 304 to {headers['etag']}")

_, response = requester.requestJsonAndCheck("POST", "/graphql", input={"query": "{viewer{login}}"})
assert response["data"]["viewer"]["login"] == "acme-owner", response
print(f"graphql: {response['data']['viewer']['login']}")

commit = g.search_commits("gear")[0].sha


def search_until_refused():
    for n in range(10):
        try:
            g.search_commits(f"gear {n}")[0]
        except github.RateLimitExceededException as error:
            return n, error
        except IndexError:
            pass  # an empty result is a success
    raise AssertionError("no search was refused")


n, error = search_until_refused()
assert error.status == 403 and error.headers["x-ratelimit-remaining"] == "0", error
print(f"primary: {n} more searches, then {type(error).__name__}: {error}")
# A user waits until the reset, because PyGithub does not wait.
wait = g.rate_limiting_resettime + 1 - time.time()
time.sleep(max(0, wait))
assert g.search_commits("gear")[0].sha == commit
print(f"primary: passed after {wait:.0f} s")

# The transport of urllib3 can wait for Retry-After.
retrying = github.Github(
    os.environ["TOKEN"], base_url=os.environ["WEIR"],
    retry=Retry(total=3, status_forcelist=[403, 429], allowed_methods=None),
)


def tag(client, name):
    made = client.get_repo("acme/widgets", lazy=True).create_git_tag(name, "made by PyGithub", commit, "commit")
    print(f"write: {made.sha}")


began = time.time()
for n in range(3):
    tag(retrying, f"v{n}")
assert time.time() - began > 10, "the third tag was not refused"
print(f"secondary: the third tag was made after {time.time() - began:.0f} s")

# Without retries, PyGithub raises the same exception as for the primary limit, with another message.
try:
    for n in range(3, 10):
        tag(g, f"v{n}")
    raise AssertionError("no tag was refused")
except github.RateLimitExceededException as error:
    assert error.status == 403 and "secondary rate limit" in str(error), error
    print(f"secondary: then {type(error).__name__}: {error}; retry after {error.headers['retry-after']} s")
