import { describe } from "@effect/vitest"
import { workerConformance } from "../conformance/index.js"
import { sqliteFile } from "../support/engines.js"

describe("workers on SQLite, a file", () => workerConformance(sqliteFile, { silent: false }))
