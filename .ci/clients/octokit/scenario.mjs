// The scenario of octokit, with its plugins for throttling and for retries: it does what
// their users do, and says of each step what came of it.
import assert from 'node:assert/strict'
import { Octokit } from '@octokit/rest'
import { retry } from '@octokit/plugin-retry'
import { throttling } from '@octokit/plugin-throttling'

// Whoever wants to be asked again says so here, as the plugin demands.
const told = []
const onRateLimit = (seconds, options) => told.push({ what: 'primary', seconds, method: options.method }) > 0
const onSecondaryRateLimit = (seconds, options) => told.push({ what: 'secondary', seconds, method: options.method }) > 0

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

// Searches, one every two seconds as the plugin has them, until they are limited: then
// the plugin waits until the reset and asks again.
const { data: { items: [{ sha: commit }] } } = await octokit.rest.search.commits({ q: 'gear' })
let searches = 1
for (; searches < 10 && told.length === 0; searches++) {
  await octokit.rest.search.commits({ q: `gear ${searches}` })
}
assert.equal(told.length, 1, 'limited once, and not again after the wait')
assert.equal(told[0].what, 'primary')
console.log(`primary: ${searches - 1} searches, then onRateLimit was told of ${told[0].seconds} s; answered after that`)

// Tags until they are limited: the plugin waits for as long as Retry-After says.
const tag = (client, n) => client.rest.git.createTag({ ...widgets, tag: `v${n}`, message: 'made by octokit', object: commit, type: 'commit' })
told.length = 0
let made = 0
for (; made < 10 && told.length === 0; made++) {
  const { data } = await tag(octokit, made)
  console.log(`write: ${data.sha}`)
}
assert.equal(told.length, 1, 'limited once, and not again after the wait')
assert.equal(told[0].what, 'secondary')
console.log(`secondary: ${made - 1} tags, then onSecondaryRateLimit was told of ${told[0].seconds} s; answered after that`)

// The same without a wish for another try: its error is typed.
const once = new Throttled({ baseUrl: process.env.WEIR, auth: process.env.TOKEN, throttle: { id: 'once', onRateLimit: () => false, onSecondaryRateLimit: () => false } })
await assert.rejects(async () => {
  for (const last = made + 10; made < last; made++) await tag(once, made)
}, error => {
  assert.deepEqual([error.name, error.status], ['HttpError', 403])
  assert.ok(Number(error.response.headers['retry-after']) > 0)
  console.log(`secondary: then ${error.name}: ${error.message}; again in ${error.response.headers['retry-after']} s`)
  return true
})
