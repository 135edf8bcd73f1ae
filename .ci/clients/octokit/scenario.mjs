// The scenario of octokit, with its plugins for throttling and retries, performs the usual operations
// of its users and reports the result of each step.
import assert from 'node:assert/strict'
import { Octokit } from '@octokit/rest'
import { paginateGraphQL } from '@octokit/plugin-paginate-graphql'
import { retry } from '@octokit/plugin-retry'
import { throttling } from '@octokit/plugin-throttling'

// The plugin calls one of these functions for each refusal. The result true requests a retry.
const refusals = []
const onRateLimit = (seconds, options) => refusals.push({ limit: 'primary', seconds, method: options.method }) > 0
const onSecondaryRateLimit = (seconds, options) => refusals.push({ limit: 'secondary', seconds, method: options.method }) > 0

const Throttled = Octokit.plugin(retry, throttling)
const octokit = new Throttled({ baseUrl: process.env.WEIR, auth: process.env.TOKEN, throttle: { onRateLimit, onSecondaryRateLimit } })
const { data: limits } = await octokit.rest.rateLimit.get()

assert.equal(limits.resources.core.limit, 5000)
console.log(`rate-limit: ${limits.resources.core.remaining} of ${limits.resources.core.limit} left`)

const widgets = { owner: 'acme', repo: 'widgets' }
const watchers = await octokit.paginate(octokit.rest.activity.listWatchersForRepo, { ...widgets, per_page: 30 })
assert.equal(watchers.length, 64)
console.log(`pagination: ${watchers.length} watchers`)

for (let i = 0; i < 2; i++) {
  const { data, headers } = await octokit.rest.gitignore.getTemplate({ name: 'Go' })
  assert.equal(data.name, 'Go')
  console.log(`reference: ${headers['cache-status']}`)
}

const { status, data: weeks } = await octokit.rest.repos.getCommitActivityStats(widgets)
assert.deepEqual([status, weeks.length], [200, 52])
console.log(`statistics: ${weeks.length} weeks`)

const { headers: { etag } } = await octokit.request('GET /orgs/{org}/members', { org: 'acme' })
await assert.rejects(octokit.request('GET /orgs/{org}/members', { org: 'acme', headers: { 'if-none-match': etag } }), { name: 'HttpError', status: 304 })
console.log(`conditional: 304 to ${etag}`)

const { viewer } = await octokit.graphql('{viewer{login}}')
assert.equal(viewer.login, 'acme-owner')
console.log(`graphql: ${viewer.login}`)

const { repository } = await paginateGraphQL(octokit).graphql.paginate(`query paginate($cursor: String) {
  repository(owner: "acme", name: "widgets") {
    watchers(first: 30, after: $cursor) { totalCount nodes { login } pageInfo { hasNextPage endCursor } }
  }
}`)
assert.equal(repository.watchers.nodes.length, repository.watchers.totalCount)
console.log(`graphql pagination: ${repository.watchers.nodes.length} watchers`)

// The plugin sends one search every two seconds. After a refusal it waits until the reset and retries.
const { data: { items: [{ sha: commit }] } } = await octokit.rest.search.commits({ q: 'gear' })
let searches = 1
for (; searches < 10 && refusals.length === 0; searches++) {
  await octokit.rest.search.commits({ q: `gear ${searches}` })
}
assert.equal(refusals.length, 1, 'want one refusal, and none for the retry')
assert.equal(refusals[0].limit, 'primary')
console.log(`primary: ${searches - 1} searches, then onRateLimit got ${refusals[0].seconds} s; the retry passed`)

// After a refused write the plugin waits for Retry-After and retries.
const tag = (client, n) => client.rest.git.createTag({ ...widgets, tag: `v${n}`, message: 'made by octokit', object: commit, type: 'commit' })
refusals.length = 0
let made = 0
for (; made < 10 && refusals.length === 0; made++) {
  const { data } = await tag(octokit, made)
  console.log(`write: ${data.sha}`)
}
assert.equal(refusals.length, 1, 'want one refusal, and none for the retry')
assert.equal(refusals[0].limit, 'secondary')
console.log(`secondary: ${made - 1} tags, then onSecondaryRateLimit got ${refusals[0].seconds} s; the retry passed`)

// Without a retry, the client throws a typed error.
const once = new Throttled({ baseUrl: process.env.WEIR, auth: process.env.TOKEN, throttle: { id: 'once', onRateLimit: () => false, onSecondaryRateLimit: () => false } })
await assert.rejects(async () => {
  for (const last = made + 10; made < last; made++) await tag(once, made)
}, error => {
  assert.deepEqual([error.name, error.status], ['HttpError', 403])
  assert.ok(Number(error.response.headers['retry-after']) > 0)
  console.log(`secondary: then ${error.name}: ${error.message}; retry after ${error.response.headers['retry-after']} s`)
  return true
})
