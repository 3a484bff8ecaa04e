/** The judge itself: each thing that must not be is found when it is there. */
import { describe, expect, it } from "vitest"
import { type Row, type Run, runsOf, type Span, spansOf } from "./history.js"
import { type History, judge } from "./verdict.js"

const run = (token: number, pid: number, start: number, end: number): Run => ({
  job: 1,
  attempt: token,
  token,
  pid,
  start,
  end
})

const span = (token: number, pid: number, from: number, until: number, how?: "done" | "returned" | "lapsed"): Span => ({
  job: 1,
  token,
  pid,
  from,
  until,
  ended: how === undefined ? undefined : { at: until, how },
  early: false
})

/** Process 10 is killed at 500 with a lease until 2000; process 20 takes over at 2100. */
const good: History = {
  stalls: [],
  workers: [
    { pid: 10, from: 0, to: 500 },
    { pid: 20, from: 0, to: Number.POSITIVE_INFINITY }
  ],
  spans: [span(1, 10, 0, 2_000, "lapsed"), span(2, 20, 2_050, 2_300, "done")],
  runs: [run(1, 10, 10, 500), run(2, 20, 2_100, 2_290)],
  faults: [{ kind: "kill", pid: 10, from: 500, to: Number.POSITIVE_INFINITY }],
  orders: ["a"],
  receipts: ["a"],
  effects: ["a"],
  left: 0
}

const bad: ReadonlyArray<readonly [string, Partial<History>, object]> = [
  [
    "nothing",
    {},
    {
      lost: 0,
      repeated: 0,
      duplicated: 0,
      concurrent: 0,
      overrun: 0,
      lapsed: 1,
      recovered: 1,
      timeToRecoverMillis: 1_600
    }
  ],
  ["a late worker", { workers: [{ pid: 20, from: 1_900, to: 9_000 }] }, { recovered: 1, timeToRecoverMillis: 200 }],
  [
    "a database that was away, and back before that was told",
    {
      faults: [
        { kind: "outage", from: 500, to: 700 },
        { kind: "outage", from: 900, to: 2_110 }
      ]
    },
    { recovered: 1, timeToRecoverMillis: 0 }
  ],
  [
    "a busy machine",
    {
      stalls: [
        { pid: 10, from: 600, to: 1_000 },
        { pid: 20, from: 1_000, to: 1_400 },
        { pid: 20, from: 1_200, to: 1_500 },
        { pid: 20, from: 2_000, to: 4_000 }
      ]
    },
    { timeToRecoverMillis: 1_000 }
  ],
  ["an order without an effect", { orders: ["a", "b"] }, { lost: 1 }],
  ["a receipt without an order", { receipts: ["a", "b"] }, { lost: 1 }],
  ["a job that never ends", { left: 1 }, { lost: 1 }],
  ["an effect twice", { effects: ["a", "a"] }, { repeated: 1 }],
  ["an effect of what was rolled back", { effects: ["a", "b"] }, { repeated: 1 }],
  ["an attempt without a reason", { faults: [] }, { duplicated: 1 }],
  [
    "an attempt for somebody else's reason",
    { faults: [{ kind: "kill", pid: 20, from: 500, to: 501 }] },
    { duplicated: 1 }
  ],
  [
    "two runs of one lease",
    { runs: [run(1, 10, 10, 500), run(1, 10, 20, 490), run(2, 20, 2_100, 2_290)] },
    { concurrent: 1 }
  ],
  [
    "two runs at once under valid leases",
    {
      spans: [span(1, 10, 0, 2_000, "lapsed"), span(2, 20, 400, 2_300, "done")],
      runs: [run(1, 10, 10, 500), run(2, 20, 410, 2_290)]
    },
    { concurrent: 1 }
  ],
  [
    "a run that was stopped when its lease ended",
    {
      runs: [run(1, 10, 10, 3_500), run(2, 20, 2_100, 2_290)],
      faults: [{ kind: "freeze", pid: 10, from: 500, to: 3_400 }]
    },
    { overrun: 0, concurrent: 0 }
  ],
  [
    "the same, in a process that was only cut off",
    {
      runs: [run(1, 10, 10, 3_500), run(2, 20, 2_100, 2_290)],
      faults: [{ kind: "cut", pid: 10, from: 500, to: 4_000 }]
    },
    { overrun: 1, concurrent: 0 }
  ]
]

describe("the verdict", () => {
  it.each(bad)("%s", (_, change, verdict) => {
    expect(judge({ ...good, ...change })).toMatchObject(verdict)
  })

  it("a lease as the database tells of it", () => {
    const row = (at: number, old: number | null, token: number | null, until: number, more: Row = {}): Row => ({
      ...{ at, job: "1", old_token: old, token, old_until: 0, until, worker: "10-x", lapsed: 0, gone: 0 },
      ...more
    })
    const renewed = [row(0, null, 1, 2_000), row(700, 1, 1, 2_700)]
    expect(spansOf([...renewed, row(900, 1, null, 0, { gone: 1 })])).toMatchObject([
      { token: 1, pid: 10, until: 900, ended: { how: "done" }, early: false }
    ])
    expect(spansOf([...renewed, row(2_700, 1, null, 0, { lapsed: 1 })])).toMatchObject([
      { until: 2_700, ended: { how: "lapsed" }, early: false }
    ])
    // Taken away while it was valid
    expect(spansOf([...renewed, row(2_600, 1, null, 0, { lapsed: 1 })])).toMatchObject([{ early: true }])
    expect(spansOf([...renewed, row(2_600, 1, 2, 4_600)])).toMatchObject([
      { token: 1, early: true },
      { token: 2, early: false }
    ])
  })

  it("runs end with their work, or with their process", () => {
    const entry = (event: string, token: number, at: number) => ({ event, pid: 10, job: 1, attempt: 1, token, at })
    const entries = [entry("start", 1, 10), entry("start", 2, 20), entry("worked", 1, 30), entry("Acked", 1, 40)]
    expect(runsOf(entries, () => 500, 5).map(({ end, start }) => [start, end])).toEqual([
      [15, 35],
      [25, 505]
    ])
  })
})
