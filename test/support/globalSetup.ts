import type { TestProject } from "vitest/node"
import { startPostgres } from "./postgres.js"

declare module "vitest" {
  export interface ProvidedContext {
    /** The run's own PostgreSQL database; `createDatabase(inject("pgUrl"))` makes another for a test file. */
    readonly pgUrl: string
  }
}

/** One PostgreSQL for the whole run. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const postgres = await startPostgres()
  project.provide("pgUrl", postgres.url)
  return postgres.stop
}
