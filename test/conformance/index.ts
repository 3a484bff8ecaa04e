/** Every promise of the store, the locks, the wakes and the workers, put to one engine. */
import type { EngineUnderTest } from "../support/engines.js"

export interface ConformanceOptions {
  /** No wake ever comes: everything must be found by polling. */
  readonly silent: boolean
}

export const conformance = (_engine: EngineUnderTest, _options: ConformanceOptions): void => {}
