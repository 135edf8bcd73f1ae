// Refuses every request for /KIND/PROGRAM, and writes the times of the requests of each program when its input ends.
import http from 'node:http'

const secondary = 'You have exceeded a secondary rate limit. Please wait a few minutes before you try again.'
const primary = 'API rate limit exceeded for user ID 1.'
const kinds = { // status, remaining requests, Retry-After, message
  'Weir 403': [403, 0, true, primary],
  'Weir 429': [429, 0, true, primary],
  'API primary': [403, 0, false, primary],
  'API secondary': [403, 4000, true, secondary],
}
const times = {}
const server = http.createServer((request, response) => {
  const [, kind, program] = decodeURIComponent(request.url).split('/')
  const now = Date.now(), [status, remaining, after, message] = kinds[kind]
  ;((times[program] ??= {})[kind] ??= []).push(now)
  response.writeHead(status, {
    'content-type': 'application/json; charset=utf-8', 'x-ratelimit-resource': 'core', 'x-ratelimit-limit': 5000,
    'x-ratelimit-remaining': remaining, 'x-ratelimit-used': 5000 - remaining, 'x-ratelimit-reset': Math.ceil(now / 1000) + 3,
    ...after && { 'retry-after': 3 },
  })
  response.end(JSON.stringify({ message, documentation_url: 'https://docs.example/rest', status: String(status) }))
})
server.listen(process.argv[2], '127.0.0.1')
process.stdin.resume().on('end', () => {
  console.log(`| program | ${Object.keys(kinds).join(' | ')} |`)
  for (const program of Object.keys(times).sort()) {
    const cells = Object.keys(kinds).map(kind => (times[program][kind] ?? []).map(t => Math.round((t - times[program][kind][0]) / 1000)).join(', '))
    console.log(`| ${program} | ${cells.join(' | ')} |`)
  }
  process.exit()
})
