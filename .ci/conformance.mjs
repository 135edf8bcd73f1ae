// conformance.mjs SUITE WEIR runs the public HTTP cache test suite in the folder SUITE against the program WEIR in front of
// the suite's own server: in memory and with Redis, in both dialects. It fails in these cases:
//   - A case fails that is not listed below, or a listed case passes.
//   - Fewer required or optional cases pass than the floor.
// A case counts as passed only if the cases on which it depends pass, as in the published results of the suite.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'

const cookie = 'a response that sets a cookie is for one client, so it is not stored'
const shared = 'a response to one credential is not served to another client without proof of access, even if RFC 9111 section 3.5 allows it'
const exceptions = {
  'headers-store-Set-Cookie': cookie,
  'other-set-cookie': cookie,
  'headers-store-Transfer-Encoding': 'a response with an unknown transfer coding cannot be read (RFC 9112 section 6.1)',
  'other-authorization-public': shared,
  'other-authorization-must-revalidate': shared,
  'other-authorization-smaxage': shared,
  'method-POST': 'a write makes stored responses stale; its own response is not stored (RFC 9110 section 9.3.3 allows both)',
  'vary-normalise-lang-select': 'RFC 9111 section 4.1 allows only a match of the normalized field, and the upstream selects the language',
  'conditional-lm-fresh-no-lm': 'the Date of the stored response is later than If-Modified-Since, so the response is 200 (RFC 9111 section 4.3.2)',
  'partial-store-partial-complete': 'parts without a strong validator must not be combined (RFC 9111 section 3.4)'
}
const floors = { required: 158, optional: 97 }

const [suite, weir] = process.argv.slice(2).map(p => path.resolve(p))
const load = file => import(pathToFileURL(path.join(suite, file)))
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'conformance-'))
const log = fs.openSync(path.join(folder, 'log'), 'w')
const children = []

// start starts a program that listens on a port of its own, and returns the port.
async function start (program, argumentsFor) {
  const port = await freePort()
  const { args, ...options } = argumentsFor(port)
  const child = spawn(program, args, { stdio: ['ignore', log, log], ...options })
  children.push(child)
  await accepts(port, child)
  return port
}

// freePort returns a port on which no process listens. It is below the ephemeral ports of Linux, so that no outgoing connection can
// use it.
async function freePort () {
  for (let i = 0; i < 1000; i++) {
    const port = 10_000 + Math.floor(5_000 * Math.random())
    const server = net.createServer().listen(port, '127.0.0.1')
    try {
      await once(server, 'listening')
    } catch {
      continue // in use
    }
    server.close()
    await once(server, 'close')
    return port
  }
  throw new Error('1000 ports are in use')
}

// accepts waits until a child accepts connections.
async function accepts (port, child) {
  for (let i = 0; i < 300 && child.exitCode === null; i++) {
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
  throw new Error(`${child.spawnfile} does not accept connections on port ${port}:\n${fs.readFileSync(path.join(folder, 'log'))}`)
}

// startGateway returns the URL of a new gateway. No limit is reached, although the suite sends many requests at the same time.
async function startGateway (upstream, store, dialect) {
  const port = await start(weir, port => {
    const config = path.join(folder, `${port}.yaml`)
    fs.writeFileSync(config, `
listen: "127.0.0.1:${port}"
admin: {listen: "127.0.0.1:0"}
upstream: {url: "http://127.0.0.1:${upstream}", dialect: ${dialect}}
store: {url: "${store}"}
limits:
  primary: {unauthenticated: 1000000, user: 1000000}
  points: {rest: 1000000}
  cpu: {total: 24h, graphql: 24h}
  content: [{max: 100000, window: 1m}]
  concurrent: 1000
  inbound: {rate: 0}
  cold_start: trust
`)
    return { args: ['serve', '--config', config] }
  })
  return `http://127.0.0.1:${port}`
}

// run returns the results of all cases against a gateway. The suite reads its configuration from variables of npm.
async function run (url) {
  const { stdout } = await promisify(execFile)(process.execPath, ['--no-warnings', 'test-engine/cli.mjs'], {
    cwd: suite, maxBuffer: 1 << 24, env: { ...process.env, npm_config_base: url, npm_config_id: '', npm_package_config_id: '' }
  })
  return JSON.parse(stdout)
}

// report prints the figures of one mode and returns whether the mode fails.
function report (mode, suites, results, { determineTestResult, resultTypes }) {
  const counts = { required: { passed: 0, all: 0 }, optional: { passed: 0, all: 0 } }
  const failures = []
  for (const { id, name, kind } of suites.flatMap(s => s.tests)) {
    if (kind === 'check' || !(id in results)) continue
    const count = counts[kind === 'optimal' ? 'optional' : 'required']
    const passed = determineTestResult(suites, id, results) === resultTypes.pass
    count.all++
    if (passed) count.passed++
    if (passed && exceptions[id]) failures.push(`${id} passes; remove it from the exceptions`)
    if (!passed && !exceptions[id]) failures.push(`${id}: ${name}: ${results[id]}`)
  }
  const figures = Object.entries(counts).map(([kind, n]) => `${kind} ${n.passed} of ${n.all}`)
  console.log(`${mode}: ${figures.join(', ')}`)
  for (const [kind, floor] of Object.entries(floors)) {
    if (counts[kind].passed < floor) failures.push(`fewer than ${floor} ${kind} cases pass`)
  }
  failures.forEach(f => console.log(`FAILED: ${mode}: ${f}`))
  return failures.length > 0
}

let failed
try {
  const [upstream, redis] = await Promise.all([
    start(process.execPath, port => ({
      args: ['test-engine/server/server.mjs'],
      cwd: suite,
      env: { ...process.env, npm_config_protocol: 'http', npm_config_port: port, npm_config_pidfile: path.join(folder, 'pid') }
    })),
    start('redis-server', port => ({ args: ['--port', port, '--bind', '127.0.0.1', '--save', '', '--dir', folder] }))
  ])
  const [suites, judge] = [(await load('tests/index.mjs')).default, await load('test-engine/lib/results.mjs')]
  const modes = {
    'memory, service dialect': ['memory:', 'service'],
    'memory, github dialect': ['memory:', 'github'],
    'redis, service dialect': [`redis://127.0.0.1:${redis}/0`, 'service'],
    'redis, github dialect': [`redis://127.0.0.1:${redis}/1`, 'github']
  }
  Object.entries(exceptions).forEach(([id, reason]) => console.log(`exception: ${id}: ${reason}`))
  const results = await Promise.all(Object.values(modes).map(async mode => run(await startGateway(upstream, ...mode))))
  failed = Object.keys(modes).map((mode, i) => report(mode, suites, results[i], judge)).includes(true)
} finally {
  children.forEach(child => child.kill())
  fs.rmSync(folder, { recursive: true })
}
process.exit(failed ? 1 : 0)
