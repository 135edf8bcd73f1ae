// Performs the tasks of "weir judge" with octokit and its plugins for throttling and retries. With JUDGE_REDIS, the
// programs share the queue of the throttling plugin through Redis.
import { readFileSync } from 'node:fs'
import { Octokit } from '@octokit/core'
import { retry } from '@octokit/plugin-retry'
import { throttling } from '@octokit/plugin-throttling'
import Bottleneck from 'bottleneck'
import Redis from 'ioredis'

const workers = 4 // requests of one kind in progress at the same time
const { WEIR_JUDGE_URL: baseUrl, WEIR_JUDGE_TOKEN: auth, JUDGE_REDIS: redis } = process.env

// The result true makes the plugin repeat the request after the time that the limit error says.
const throttle = { onRateLimit: () => true, onSecondaryRateLimit: () => true }
if (redis) {
  const connection = new Bottleneck.IORedisConnection({ client: new Redis(redis) })
  Object.assign(throttle, { connection, Bottleneck, id: 'judge' })
}
const log = { debug () {}, info () {}, warn () {}, error () {} }
const octokit = new (Octokit.plugin(retry, throttling))({ baseUrl, auth, throttle, log })

const queues = {}
for (const line of readFileSync(0, 'utf8').trimEnd().split('\n')) {
  const [kind, method, path, body] = line.split(' ')
  const queue = queues[kind] ??= []
  queue.push({ method, url: path, ...JSON.parse(body ?? '{}') })
}
async function work (queue) {
  while (queue.length > 0) {
    await octokit.request(queue.shift()).catch(() => {}) // a task that the plugins do not repeat has failed
  }
}
await Promise.all(Object.values(queues).flatMap(queue => Array.from({ length: workers }, () => work(queue))))
process.exit() // the connection to Redis would keep the process alive
