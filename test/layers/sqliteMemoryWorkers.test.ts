import { describe } from "@effect/vitest"
import { workerConformance } from "../conformance/index.js"
import { sqliteMemory } from "../support/engines.js"

describe("workers on SQLite, in memory", () => workerConformance(sqliteMemory, { silent: false }))
