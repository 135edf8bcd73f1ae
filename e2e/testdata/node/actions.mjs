// A script of the toolkit of Actions: it calls the API, and downloads a release asset with the tool cache.
import { getOctokit } from "@actions/github"
import { downloadTool } from "@actions/tool-cache"
import { statSync } from "node:fs"

const octokit = getOctokit(process.env.GITHUB_TOKEN)
const { data } = await octokit.rest.users.getAuthenticated()
const asset = "https://api.github.com/repos/acme/widgets/releases/assets/1"
const file = await downloadTool(asset, undefined, `token ${process.env.GITHUB_TOKEN}`, { accept: "application/octet-stream" })
console.log(`${data.login} ${statSync(file).size}`)
