// Serves MCP over streamable HTTP, or calls a tool of such a server that is silent for a while: mcp.mjs serve SECONDS | mcp.mjs call URL.
import http from "node:http"
import { Client } from "@modelcontextprotocol/sdk/client/index.js"
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js"
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js"
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js"

const [mode, argument] = process.argv.slice(2)
if (mode === "serve") {
  const sessions = new Map()
  const server = http.createServer(async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"])
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: () => crypto.randomUUID(), onsessioninitialized: (id) => sessions.set(id, transport),
      })
      const mcp = new McpServer({ name: "slow", version: "1" })
      mcp.registerTool("wait", { description: "answers late" }, async (extra) => {
        await new Promise((done) => setTimeout(done, argument * 1000))
        return { content: [{ type: "text", text: `read-only: ${extra.requestInfo.headers["x-mcp-readonly"]}` }] }
      })
      await mcp.connect(transport)
    }
    await transport.handleRequest(request, response)
  })
  server.requestTimeout = 0
  server.listen(0, "127.0.0.1", () => console.log(`port ${server.address().port}`))
} else {
  const client = new Client({ name: "agent", version: "1" })
  await client.connect(new StreamableHTTPClientTransport(new URL(argument), { requestInit: { headers: { "X-MCP-Readonly": "true" } } }))
  const result = await client.callTool({ name: "wait" }, undefined, { timeout: 90_000 })
  console.log(result.content[0].text)
  await client.close()
}
