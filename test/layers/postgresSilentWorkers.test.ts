import { describe } from "@effect/vitest"
import { workerConformance } from "../conformance/index.js"
import { postgres } from "../support/engines.js"

describe("workers on PostgreSQL, no wakes", () => workerConformance(postgres, { silent: true }))
