// Node 20 ignores HTTPS_PROXY for fetch. Node 24 does the same as this file with NODE_USE_ENV_PROXY=1.
import { EnvHttpProxyAgent, setGlobalDispatcher } from "undici"

setGlobalDispatcher(new EnvHttpProxyAgent())
