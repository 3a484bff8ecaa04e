import { describe } from "@effect/vitest"
import { conformance } from "../conformance/index.js"
import { sqliteMemory } from "../support/engines.js"

describe("SQLite, in memory", () => conformance(sqliteMemory, { silent: false }))
