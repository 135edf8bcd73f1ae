// conformance.mjs SUITE WEIR runs the HTTP cache test suite (npm package http-cache-tests in the folder SUITE) against the
// program WEIR in front of the suite's own server. It fails if a required case fails that is not listed below, or if a listed
// case passes.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const closed = 'the suite expects a response of its server, which has closed the connection'
const cookies = 'a response that sets a cookie is for one client, so it is not stored'
const exceptions = {
  'stale-close-must-revalidate': closed,
  'stale-close-proxy-revalidate': closed,
  'stale-close-no-cache': closed,
  'stale-close-s-maxage=2': closed,
  'headers-store-Set-Cookie': cookies,
  '304-etag-update-response-Set-Cookie': cookies,
  'headers-store-Transfer-Encoding': 'a response with an unknown transfer coding cannot be read (RFC 9112 section 6.1)',
  'age-parse-prefix': 'the name of the case requires stale, but its check requires fresh; Weir treats an Age list as too high'
}

const [suite, weir] = process.argv.slice(2).map(p => path.resolve(p))
const load = file => import(pathToFileURL(path.join(suite, file)))

async function freePort () {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

async function accepts (port) {
  for (let i = 0; i < 100; i++) {
    const socket = net.connect(port, '127.0.0.1')
    try {
      await once(socket, 'connect')
      return
    } catch {
      await new Promise(resolve => setTimeout(resolve, 100))
    } finally {
      socket.destroy()
    }
  }
  throw new Error(`no server accepts connections on port ${port}`)
}

const [upstream, gateway, admin] = [await freePort(), await freePort(), await freePort()]
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'conformance-'))
const config = path.join(folder, 'weir.yaml')
// No limit is reached, although the suite sends a thousand requests at the same time.
fs.writeFileSync(config, `
listen: "127.0.0.1:${gateway}"
admin: {listen: "127.0.0.1:${admin}"}
upstream: {url: "http://127.0.0.1:${upstream}"}
limits:
  primary: {unauthenticated: 1000000, user: 1000000}
  points: {rest: 1000000}
  cpu: {total: 24h, graphql: 24h}
  content: [{max: 100000, window: 1m}]
  concurrent: 1000
  inbound: {rate: 0}
  cold_start: trust
`)
const log = fs.openSync(path.join(folder, 'log'), 'w')
const children = [
  spawn(process.execPath, ['server/server.mjs'], {
    cwd: suite,
    stdio: ['ignore', log, log],
    env: { ...process.env, npm_config_protocol: 'http', npm_config_port: upstream, npm_config_pidfile: path.join(folder, 'pid') }
  }),
  spawn(weir, ['serve', '--config', config], { stdio: ['ignore', log, log] })
]
let failed = false
try {
  await Promise.all([accepts(upstream), accepts(gateway)])
  const { runTests, getResults } = await load('client/runner.mjs')
  const fetch = (await load('node_modules/node-fetch/lib/index.mjs').catch(() => load('../node-fetch/lib/index.mjs'))).default
  const tests = (await load('tests/index.mjs')).default
  tests.push((await load('tests/surrogate-control.mjs')).default)
  await runTests(tests, fetch, false, `http://127.0.0.1:${gateway}`)
  failed = report(tests, getResults())
} finally {
  children.forEach(child => child.kill())
  fs.rmSync(folder, { recursive: true })
}
process.exit(failed ? 1 : 0)

function report (tests, results) {
  const counts = {}
  const lines = []
  let failed = false
  for (const test of tests.flatMap(s => s.tests).filter(t => !t.browser_only)) {
    const kind = test.kind || 'required'
    const passed = results[test.id] === true
    counts[kind] = counts[kind] || { passed: 0, all: 0 }
    counts[kind].all++
    if (passed) counts[kind].passed++
    if (kind !== 'required') continue
    if (!passed && exceptions[test.id]) lines.push(`exception: ${test.id}: ${exceptions[test.id]}`)
    if (!passed && !exceptions[test.id]) lines.push(`FAILED: ${test.id}: ${test.name}: ${results[test.id]}`)
    if (passed && exceptions[test.id]) lines.push(`FAILED: ${test.id} passes; remove it from the exceptions`)
    failed = failed || passed === (test.id in exceptions)
  }
  for (const line of lines) console.log(line)
  for (const [kind, n] of Object.entries(counts)) console.log(`${kind}: ${n.passed} of ${n.all}`)
  return failed
}
