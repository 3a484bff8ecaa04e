/*
 * One schedule with a boundary at each instant, two schedulers that both fire it, a version that puts it again, and a
 * clock that may step back. Firing is one transaction: the row is locked, jobs are enqueued, the row moves on. Who dies
 * before the commit leaves nothing.
 *
 * due, lock   src/layers/Schedules/statements.ts `due`, `lockDue`, `lock`
 * fire        src/layers/Schedules/fire.ts, src/layers/Schedules/decide.ts (`catchUp: "all"`)
 * Put         src/layers/Schedules/put.ts: what is due is fired first, then the next is found anew
 */
#ifndef END
#define END 4 /* the last instant, and boundary */
#endif
#define MAX_DEATHS 2

byte clock
byte next = 1, last /* the row: the boundary that it owes next, and the last that has come */
byte locked         /* by whose transaction, plus one */
byte jobs[END + 1]  /* committed, of each boundary */
byte deaths
bool stepped
byte i

/* A boundary is fired once, however many fire it, whatever the clock does. */
ltl G109_fired_once { [] (most <= 1) }
byte most
/* And each one is fired at last, whoever dies. */
ltl G101_each_is_fired { <> (fired == END) }
byte fired

inline add(b) {
  fired = (jobs[b] == 0 -> fired + 1 : fired);
  jobs[b]++;
  most = (jobs[b] > most -> jobs[b] : most)
}

inline enqueue() {
  i = from;
  do
  :: i <= now -> add(i); i++
  :: else -> break
  od;
  i = 0
}

#define max(a, b) (a > b -> a : b)
#ifdef NO_LAST
#define next_after (now + 1)
#else
#define next_after (max(now, last) + 1)
#endif

inline move_on() {
  last = (now >= from -> max(now, last) : last);
  next = next_after
}

/* From the row as it is now: who has waited for its lock, or found it due before, looks again. */
inline read_row() {
  now = clock;
#ifdef NO_LAST
  from = next
#else
  from = max(next, last + 1)
#endif
}

inline transaction(w) {
  if
#if defined(ENQUEUE_FIRST)
  :: atomic { enqueue() } atomic { move_on(); locked = 0 }
#elif defined(ADVANCE_FIRST)
  :: atomic { move_on() } atomic { enqueue(); locked = 0 }
#else
  :: atomic { enqueue(); move_on(); locked = 0 } /* COMMIT */
#endif
  :: atomic { deaths < MAX_DEATHS -> deaths++; locked = (locked == w + 1 -> 0 : locked) } /* ROLLBACK */
#if defined(ENQUEUE_FIRST)
  :: atomic { deaths < MAX_DEATHS -> deaths++; enqueue() } locked = 0
#elif defined(ADVANCE_FIRST)
  :: atomic { deaths < MAX_DEATHS -> deaths++; move_on() } locked = 0
#endif
  fi
}

proctype Scheduler(byte w) {
  byte now, from;
  do
  :: next <= clock -> /* `due`, without a lock */
    if
#ifdef NO_ROW_LOCK
    :: atomic { read_row() } transaction(w)
#else
    :: atomic { locked == 0 && next <= clock -> locked = w + 1; read_row() } transaction(w)
    :: else /* passed over: somebody has it locked, or has fired it */
#endif
    fi;
    now = 0; from = 0
  od
}

proctype Put() {
  byte now, from;
  atomic { locked == 0 -> locked = 3; read_row() }
  transaction(2)
}

proctype Clock() {
  do
  :: clock < END -> clock++
  :: atomic { !stepped && clock > 1 -> stepped = true; clock = clock - 2 }
  od
}

init { atomic { run Scheduler(0); run Scheduler(1); run Put(); run Clock() } }
