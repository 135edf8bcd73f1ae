// One request of each library of JavaScript. Errors are the expected result.
import axios from 'axios'
import axiosRetry from 'axios-retry'
import got from 'got'
import { Octokit } from '@octokit/core'
import { retry } from '@octokit/plugin-retry'
import { throttling } from '@octokit/plugin-throttling'

const base = process.argv[2]
const log = { debug() {}, info() {}, warn() {}, error() {} }
const again = (seconds, options, octokit, count) => count < 1
const retrying = axios.create()
axiosRetry(retrying)
const octokit = (plugin, program) => new (Octokit.plugin(plugin))({
  baseUrl: `${base}/${encodeURIComponent(program)}`, log, throttle: { onRateLimit: again, onSecondaryRateLimit: again },
}).request('GET /user')
await Promise.allSettled([
  retrying.get(`${base}/axios-retry`), got(`${base}/got`), octokit(retry, 'octokit plugin-retry'), octokit(throttling, 'octokit plugin-throttling'),
])
