import { describe } from "@effect/vitest"
import { operationsConformance } from "../conformance/index.js"
import { sqliteFile } from "../support/engines.js"

describe("SQLite, a file, operations", () => operationsConformance(sqliteFile, { silent: false }))
