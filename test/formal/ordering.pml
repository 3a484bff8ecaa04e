/*
 * One ordering key on PostgreSQL: three transactions that enqueue, two workers that claim, settle and make passes over the
 * marks, an operator, and an application that has a waiting job locked. A statement reads by its snapshot; what it locks
 * it looks at again. So a pass is three steps: its snapshot, the turn, its writes; or, where a dead letter may hold the key,
 * the turn, its snapshot, its writes.
 *
 * insert, commit   src/layers/Queue/statements/enqueue.ts: ids come before commits; a mark commits with its job
 * pass             src/layers/Queue/statements/lanes.ts `advance`, `turn`; src/layers/Queue/store.ts `pass`, which is quick
 *                  at first, and careful when the quick one has missed its turn or the queue's dead letters hold their keys
 * claim            src/layers/Queue/statements/claim.ts, src/layers/Queue/SqlQueue.ts `claimJobs`
 * settle           src/layers/Queue/statements/settle.ts, leave.ts: a job that leaves leaves a mark
 * requeue, purge   src/layers/Queue/statements/letters.ts
 *
 * SQLite has one writer and no marks: whoever changes a key advances it in the same transaction.
 */
#ifndef N
#define N 2 /* jobs, in the order of their ids: 2 or 3 */
#endif
#ifndef MAX_RETRIES
#define MAX_RETRIES 1
#endif
#ifndef MAX_DEATHS
#define MAX_DEATHS 1
#endif

mtype = { none, inserted, blocked, unblocked, leased, dead, gone }

mtype job[4] = none
byte ids, retries, deaths
byte marks      /* bit s: there are some that are in the snapshots of the passes s, a set by bits; more make no difference */
byte block      /* the dead letter that holds the key */
byte locked     /* the job that an application has locked */
byte turn       /* whose pass it is, plus one */
bool holds      /* the queue's onDead is "block" */

/* What only properties look at: who had committed when a job was inserted, and what went wrong. */
byte before[4]
bool overtaken, unheld

#define bit(n) (1 << (n))
#define waits(n) (job[n] == blocked)
#define busy(n) (job[n] == unblocked || job[n] == leased)
#define is_free (!(busy(1) || busy(2) || busy(3)))
#define over(n) (job[n] == none || job[n] == gone || job[n] == inserted || (job[n] == dead && block == 0))

/* Jobs with the same key are processed one at a time. */
ltl G160_one_at_a_time { [] !((job[1] == leased && (job[2] == leased || job[3] == leased)) || (job[2] == leased && job[3] == leased)) }
/* None before one that had committed when it was enqueued, or is requeued at the head. */
ltl G160_in_order { [] !overtaken }
/* A dead letter holds its key until it is requeued or purged. */
ltl G165_held_by_its_letter { [] !unheld }
#if N == 2 /* with three the search for a cycle takes hours */
/* Nothing is left blocked for ever; a transaction that stays open holds up nobody else (G166). */
ltl G164_nothing_left_blocked { <> [] (over(1) && over(2) && over(3)) }
#endif

#define mark() marks = marks | 1 /* no snapshot knows it */
#define sees(w) ((w == 0 -> marks & 10 : marks & 12) != 0)
/* All marks are in the snapshot of w; those in it are deleted; its snapshot is over. */
#define see(w) marks = (w == 0 -> (marks & 5) << 1 : (marks & 3) << 2)
#define take(w) marks = (w == 0 -> marks & 5 : marks & 3)
#define let(w) marks = (w == 0 -> (marks & 5) | ((marks & 10) >> 1) : (marks & 3) | ((marks & 12) >> 2))

inline note_order(n) {
  overtaken = overtaken || (((before[n] & bit(1)) && waits(1)) || ((before[n] & bit(2)) && waits(2)));
  unheld = unheld || block > 0
}

proctype Enqueuer() {
  byte id;
  /* The insert takes an id; nobody sees the job before the commit */
  atomic { ids++; id = ids; job[id] = inserted;
    before[id] = (waits(1) || busy(1) -> bit(1) : 0) | (waits(2) || busy(2) -> bit(2) : 0) }
#ifdef MARK_FIRST
  atomic { mark() } /* in a transaction of its own */
#endif
  if
  :: atomic { job[id] = blocked;
#if !defined(NO_MARK_BY_ENQUEUE) && !defined(MARK_FIRST)
      mark()
#endif
    }
  :: job[id] = gone /* ROLLBACK */
  :: skip           /* the transaction stays open for ever */
  fi
}

/* The first job in the snapshot, if nobody of its key is unblocked and no letter holds it. */
inline find_head() {
#ifdef LAST_FIRST
  head = (waits(3) -> 3 : (waits(2) -> 2 : 1));
#else
  head = (job[1] == blocked || busy(1) -> 1 : (job[2] == blocked || busy(2) -> 2 : 3));
#endif
  head = (waits(head) && is_free && block == 0 -> head : 0)
}

inline snapshot(w) { find_head(); head = (marks != 0 -> head : 0); see(w) }

inline pass(w) {
#ifdef QUICK_WHEN_HELD
  careful = false;
#else
  careful = holds;
#endif
again:
  if
  :: careful ->
    atomic { turn == 0 -> turn = w + 1 }
    atomic { snapshot(w) }
  :: !careful ->
    atomic { snapshot(w) }
    if
    :: atomic { turn == 0 -> turn = w + 1 }
    :: atomic { turn > 0 -> head = 0; let(w); careful = true }
      goto again
    fi
  fi;
  atomic {
    turn = (turn == w + 1 -> 0 : turn);
    if
    :: head > 0 && locked != head && waits(head) ->
#ifndef NO_UNIQUE_INDEX
      if
      :: !is_free -> head = 0; let(w); goto again /* refused, and made again */
      :: else
      fi;
#endif
      take(w); job[head] = unblocked
    :: else -> take(w);
#ifndef NO_MARK_AGAIN
      if :: head > 0 -> mark() :: else fi
#endif
    fi;
    head = 0; careful = false }
}

proctype Worker(byte w) {
  byte head, mine;
  bool marked, careful;
  do
  :: atomic { /* claim */
      marked = marks != 0;
      if
      :: job[1] == unblocked && locked != 1 -> mine = 1
      :: job[2] == unblocked && locked != 2 -> mine = 2
      :: job[3] == unblocked && locked != 3 -> mine = 3
      :: else
      fi;
      if :: mine > 0 -> job[mine] = leased; note_order(mine) :: else fi }
    if
    :: mine > 0 ->
      if
      :: atomic { job[mine] = gone; mine = 0;
#ifndef NO_MARK_BY_SETTLE
          mark()
#endif
        } /* ack */
      :: atomic { retries < MAX_RETRIES -> retries++; job[mine] = unblocked; mine = 0 } /* keeps its place */
      :: atomic { deaths < MAX_DEATHS -> deaths++; job[mine] = dead; block = (holds -> mine : 0); mine = 0; mark() }
      fi;
      marked = true;
      if
      :: skip
      :: marked = false /* it dies before its pass, or does not wait for it */
      fi
    :: else
    fi;
    if
    :: marked -> pass(w)
    :: else
    fi;
    marked = false
  od
}

/* Requeues the dead letter, at the head of its key, or purges it. */
proctype Operator() {
  do
  :: atomic { block > 0 ->
      if
      :: job[block] = blocked
      :: job[block] = gone
      fi;
      block = 0; mark() }
  od
}

/* Has a job that waits locked, changes or cancels it, and lets it go. */
proctype Application() {
  atomic {
    if
    :: waits(1) -> locked = 1
    :: waits(2) -> locked = 2
    :: waits(3) -> locked = 3
    :: skip
    fi }
  if
  :: locked = 0 /* ROLLBACK, or a change that is none for the key */
  :: atomic { locked > 0 -> job[locked] = gone; locked = 0; mark() }
  fi
}

init { byte n; atomic { if :: holds = true :: holds = false fi; do :: n < N -> run Enqueuer(); n++ :: else -> break od; n = 0; run Worker(0); run Worker(1); run Operator(); run Application() } }
