/**
 * The models, what each of them proves, and what must be refuted: each mutant takes one thing away that the product
 * does, and breaks the property named with it. A model that could not see the fault would prove nothing.
 */

export interface Mutant {
  readonly mutant: string
  readonly breaks: string
}

export interface Model {
  readonly file: string
  /** Another shape of the same file. */
  readonly defines?: ReadonlyArray<string>
  /** The guarantees that its properties are named after. */
  readonly proves: string
  readonly mutants: ReadonlyArray<Mutant>
  /** Bigger bounds, for the long form. */
  readonly long?: ReadonlyArray<string>
  /** Too big for the short form. */
  readonly onlyLong?: true
}

const breaks = (property: string, ...mutants: ReadonlyArray<string>): ReadonlyArray<Mutant> =>
  mutants.map((mutant) => ({ mutant, breaks: property }))

export const models: ReadonlyArray<Model> = [
  {
    file: "lease.pml",
    proves: "G19, G28, G31, G52, G120",
    mutants: [
      ...breaks("G19_one_valid_lease", "CLAIM_LEASED", "NO_RENEWAL_CHECK", "NO_LAPSE_RECHECK"),
      ...breaks("G28_no_settle_by_a_stranger", "NO_FENCE", "ATTEMPT_AS_TOKEN"),
      ...breaks("G120_effects_with_the_ack", "EFFECTS_APART", "UNFENCED_COMMIT"),
      ...breaks("G52_attempts_are_bounded", "NO_SPENT_CHECK"),
      ...breaks("G31_every_job_ends", "NO_LAPSE")
    ],
    long: ["MAX_TROUBLES=4", "MAX_RELEASES=2"]
  },
  {
    file: "deadline.pml",
    proves: "G19, G30, G32, G33",
    mutants: [
      ...breaks("G19_no_two_handlers", "START_ANYWAY"),
      ...breaks("G30_renewed_while_it_runs", "NO_KEEPER"),
      ...breaks("G32_interrupted_when_lost", "LOST_IGNORED"),
      ...breaks(
        "G33_interrupted_in_time",
        "NO_MARGIN",
        "NO_WATCH",
        "COUNT_FROM_ANSWER",
        "RENEWED_FROM_ANSWER",
        "BUSY_COUNTS"
      )
    ],
    long: ["VISIBILITY=30", "BEAT=10"]
  },
  {
    file: "ordering.pml",
    proves: "G160, G164, G165",
    mutants: [
      ...breaks("G160_one_at_a_time", "NO_UNIQUE_INDEX"),
      ...breaks("G160_in_order", "LAST_FIRST"),
      ...breaks("G164_nothing_left_blocked", "NO_MARK_BY_ENQUEUE", "NO_MARK_BY_SETTLE", "MARK_FIRST", "NO_MARK_AGAIN"),
      ...breaks("G165_held_by_its_letter", "QUICK_WHEN_HELD")
    ],
    long: ["MAX_RETRIES=2", "MAX_DEATHS=2"]
  },
  {
    file: "ordering.pml",
    defines: ["N=3"],
    proves: "G160, G165",
    mutants: [
      ...breaks("G160_one_at_a_time", "NO_UNIQUE_INDEX"),
      ...breaks("G160_in_order", "LAST_FIRST"),
      ...breaks("G165_held_by_its_letter", "QUICK_WHEN_HELD")
    ],
    onlyLong: true
  },
  {
    file: "wake.pml",
    proves: "G63, G193",
    mutants: [
      ...breaks("G193_none_is_missed", "REGISTER_LATE", "NO_WAKE_ALL", "WAKE_ALL_FIRST", "NUDGE_CLOSED_FIRST"),
      ...breaks("G63_no_wake_before_its_job", "NOTIFY_FIRST")
    ],
    long: ["MAX_BREAKS=3"]
  },
  {
    file: "wake.pml",
    defines: ["SILENT"],
    proves: "G59",
    mutants: breaks("G59_found_by_polling", "NO_POLL")
  },
  {
    file: "lock.pml",
    proves: "G67, G69, G70",
    mutants: [
      ...breaks("G67_one_holder", "BEGUN_BY_STATEMENT"),
      ...breaks("G69_free_when_its_lease_ends", "EXPIRES_BY_ARRIVAL"),
      ...breaks("G70_old_tokens_change_nothing", "NO_TOKEN")
    ],
    long: ["END=10"]
  },
  {
    file: "schedule.pml",
    proves: "G101, G109",
    mutants: [
      ...breaks("G101_each_is_fired", "ADVANCE_FIRST"),
      ...breaks("G109_fired_once", "NO_ROW_LOCK", "NO_LAST", "ENQUEUE_FIRST")
    ],
    long: ["END=8"]
  },
  {
    file: "group.pml",
    proves: "G190, G191",
    mutants: [
      ...breaks("G190_every_call_ends", "KEEPS_THE_LEAD", "LEAVES_WITH_THE_LEAD"),
      ...breaks("G190_written_once", "TAKEN_WAITS_ON"),
      ...breaks("G191_interrupted_is_never_made", "STAYS_IN_QUEUE", "LEAVES_WHILE_TAKEN")
    ]
  }
]
