import { describe } from "@effect/vitest"
import { operationsConformance } from "../conformance/index.js"
import { postgres } from "../support/engines.js"

describe("PostgreSQL, operations", () => operationsConformance(postgres, { silent: false }))
