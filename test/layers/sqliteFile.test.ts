import { describe } from "@effect/vitest"
import { conformance } from "../conformance/index.js"
import { sqliteFile } from "../support/engines.js"

describe("SQLite, a file", () => conformance(sqliteFile, { silent: false }))
