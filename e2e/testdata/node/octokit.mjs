// A program with the host of the API compiled in.
import { Octokit } from "@octokit/rest"

const octokit = new Octokit({ auth: "none" })
const { data } = await octokit.rest.users.getAuthenticated()
console.log(data.login)
