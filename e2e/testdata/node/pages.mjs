// Reads a list of several pages with the paginator of octokit.
import { Octokit } from "@octokit/rest"

const octokit = new Octokit({ auth: "tok-owner", baseUrl: process.env.BASE_URL })
const watchers = await octokit.paginate("GET /repos/acme/widgets/subscribers", { per_page: 13 })
console.log(`${watchers.length} watchers`)
