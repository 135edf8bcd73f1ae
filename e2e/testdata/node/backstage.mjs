// Reads files and a folder of repositories as the catalog of Backstage does: with the integration library, the
// configuration in APP_CONFIG, and the ETags of the previous run, which are the output of that run.
import { ConfigReader } from "@backstage/config"
import { DefaultGithubCredentialsProvider, ScmIntegrations, getGithubFileFetchUrl } from "@backstage/integration"
import fetch from "node-fetch"

const integrations = ScmIntegrations.fromConfig(new ConfigReader(JSON.parse(process.env.APP_CONFIG)))
const { config } = integrations.github.byHost("github.com")
const provider = DefaultGithubCredentialsProvider.fromIntegrations(integrations)
const [previous, ...locations] = process.argv.slice(2)
const etags = JSON.parse(previous)
const result = {}

for (const location of locations) {
  const credentials = await provider.getCredentials({ url: location })
  const url = getGithubFileFetchUrl(location, config, credentials)
  const etag = etags[location]?.etag
  const response = await fetch(url, {
    headers: { ...credentials.headers, accept: "application/vnd.github.v3.raw", ...(etag && { "if-none-match": etag }) },
  })
  result[location] = { status: response.status, etag: response.headers.get("etag"), size: (await response.text()).length }
}

// A location with a wildcard follows URLs of the response to the repository's folders.
const { headers } = await provider.getCredentials({ url: locations[0] })
const get = async url => (await fetch(url, { headers })).json()
const status = await get(`${config.apiBaseUrl}/repos/acme/widgets/commits/main/status?per_page=0`)
const tree = await get(status.repository.trees_url.replace("{/sha}", `/${status.sha}?recursive=true`))
result.files = tree.tree.filter(item => item.type === "blob").length
console.log(JSON.stringify(result))
