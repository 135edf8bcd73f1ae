// Runs a script as actions/github-script does: with the toolkit's core, and an octokit for the inputs TOKEN and BASE_URL.
// Without TOKEN the script gets no octokit.
import core from "@actions/core"
import { getOctokit } from "@actions/github"

const { SCRIPT, TOKEN, BASE_URL } = process.env
const AsyncFunction = (async () => {}).constructor
const github = TOKEN && getOctokit(TOKEN, { baseUrl: BASE_URL })
await new AsyncFunction("core", "github", SCRIPT)(core, github)
