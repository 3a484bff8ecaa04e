import { describe } from "@effect/vitest"
import { operationsConformance } from "../conformance/index.js"
import { sqliteMemory } from "../support/engines.js"

describe("SQLite, in memory, operations", () => operationsConformance(sqliteMemory, { silent: false }))
