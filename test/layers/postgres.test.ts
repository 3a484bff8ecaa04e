import { describe } from "@effect/vitest"
import { conformance } from "../conformance/index.js"
import { postgres } from "../support/engines.js"

describe("PostgreSQL", () => conformance(postgres, { silent: false }))
