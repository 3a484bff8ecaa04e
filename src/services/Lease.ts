/**
 * @since 0.1.0
 */

/**
 * The time-limited right to a claimed job, and the only proof of a claim: every settle and renewal names it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Lease {
  readonly queue: string
  readonly jobId: number
  /** The fencing number of this claim: only grows within a namespace, never used again. */
  readonly token: number
  /** 1 for the first claim of the job; counted when the claim commits. */
  readonly attempt: number
  /** When the lease ends unless it is renewed, in milliseconds since the Unix epoch by the database's clock. */
  readonly deadline: number
  /** The length of the lease and of each renewal, in milliseconds. */
  readonly visibilityMillis: number
}
