// A bot that labels and answers new issues.
import { Probot, ProbotOctokit, Server } from "probot"

const server = new Server({
  port: process.env.PORT,
  Probot: Probot.defaults({
    githubToken: process.env.WEIR_KEY,
    baseUrl: process.env.WEIR,
    secret: process.env.HOOK_SECRET,
    Octokit: ProbotOctokit.defaults((options) => ({ ...options, throttle: { ...options.throttle, enabled: false } })),
  }),
})
await server.load((app) => {
  app.on("issues.opened", async (context) => {
    const { rest, paginate } = context.octokit
    const config = await context.config("bot.yml", { label: "bug" })
    const labels = await paginate(rest.issues.listLabelsForRepo, context.repo())
    const open = await paginate(rest.issues.listForRepo, context.repo({ per_page: 100 }))
    await rest.issues.addLabels(context.issue({ labels: [config.label] }))
    await rest.issues.createComment(context.issue({ body: "Thank you." }))
    const first = Date.now()
    await rest.issues.createComment(context.issue({ body: "A person will answer." }))
    const paused = Date.now() - first >= 3000 // the pause of the throttling plugin
    const comments = await paginate(rest.issues.listComments, context.issue())
    const listed = open.some((issue) => issue.number === context.payload.issue.number)
    console.log(`bot handled: ${labels.length} labels, listed ${listed}, ${comments.length} comments, paused ${paused}`)
  })
})
await server.start()
console.log("bot started")
