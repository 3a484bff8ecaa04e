/** PostgreSQL: Layers that are built, and tables that are migrated, with a fault at each statement in turn. */
import { buildSuite } from "./builds.js"
import { postgresGround } from "./builtEngines.js"

buildSuite(postgresGround)
