/*
 * One claim and the two clocks that count its lease down: the server's, which decides whether others may take the job, and
 * the worker's own monotonic one, by which it interrupts its handler in time. Both count in ticks; the worker's misses at
 * most one of them in the life of a lease. Messages take any number of ticks, or are lost; the process stands still for
 * any number of ticks and comes back.
 *
 * own, sentOwn     src/workers/held.ts `deadline`, src/workers/leaseKeeper.ts `sentAt`
 * beat             src/workers/leaseKeeper.ts, src/schedule/Heartbeat.ts: a third of the visibility timeout after the last
 * watch            src/workers/deadlines.ts `nextLook`: a margin before the end; src/workers/runJob.ts `begin`
 * take             src/layers/Queue/statements/claim.ts, by anybody else
 */
#ifndef VISIBILITY
#define VISIBILITY 6
#endif
#ifndef BEAT
#define BEAT 2
#endif
#ifdef NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 2 /* ticks: more than the clocks go apart in the life of a lease */
#endif

mtype = { asked, claimed, running, stopped } /* the claim: sent, done, answered; the handler is interrupted */
mtype = { none, sent, renewed, busy, lost }  /* the renewal: sent, then its answer */

mtype handler = asked
mtype renewal = none
byte left, own, sentOwn, rest
bool missedOwn, missedSent
bool frozen, taken

/* `excused`: the process has stood still while time went on. `trouble`: a message was late. `told`: of a lost lease. */
bool excused, trouble, late, told

/* A worker that cannot renew a lease interrupts its handler before the lease ends, unless it stands still itself. */
ltl G33_interrupted_in_time { [] !late }
/* So nobody else has the job while the handler goes on. */
ltl G19_no_two_handlers { [] !(taken && handler == running && !excused) }
/* While messages arrive, leases are renewed for as long as the handler runs: it is interrupted for no other reason. */
ltl G30_renewed_while_it_runs { [] (handler == stopped -> trouble) }
/* A worker that is told that its lease is lost interrupts the handler. */
ltl G32_interrupted_when_lost { [] (told -> handler != running) }

#define at_work (!frozen && handler == running)
#define must_stop (own <= MARGIN)
#define must_beat (rest == 0 && renewal == none)
#define under_way (handler == asked || handler == claimed || renewal != none)

inline count() {
  late = late || (left == 1 && at_work);
  if :: left > 0 -> left-- :: else fi;
  if
  :: missing -> missing = false; missedOwn = true; missedSent = true
  :: else ->
    if :: own > 0 -> own-- :: else fi;
    if :: sentOwn > 0 -> sentOwn-- :: else fi;
    if :: rest > 0 -> rest-- :: else fi
  fi;
  excused = excused || frozen;
  trouble = trouble || frozen || under_way
}

active proctype Clock() {
  bool missing;
  do
#ifdef NO_WATCH
  :: d_step { !at_work || !must_beat -> count() }
#else
  /* Who does not stand still acts at the instant at which its own clock says so */
  :: d_step { !at_work || !(must_stop || must_beat) -> count() }
#endif
  :: d_step { !missing && !missedOwn && !missedSent -> missing = true }
  :: d_step { frozen = !frozen }
  od
}

active proctype Keeper() {
  own = VISIBILITY; /* claimedMonotonic: before the claim is sent */
  atomic { left = VISIBILITY; handler = claimed }
#ifdef COUNT_FROM_ANSWER
  atomic { !frozen -> handler = running; rest = BEAT; own = VISIBILITY }
#elif defined(START_ANYWAY)
  atomic { !frozen -> handler = running; rest = BEAT }
#else
  /* What came too late is not started */
  atomic { !frozen -> handler = (must_stop -> stopped : running); rest = BEAT }
#endif
  do
#ifndef NO_KEEPER
  :: atomic { at_work && must_beat && !must_stop -> renewal = sent; sentOwn = VISIBILITY; missedSent = false }
#else
  :: atomic { at_work && must_beat -> rest = BEAT }
#endif
  :: atomic { renewal == sent -> /* under way: also while the process stands still */
      if
#ifdef NO_RENEWAL_CHECK
      :: left = VISIBILITY; renewal = renewed
#else
      :: !taken -> left = VISIBILITY; renewal = renewed
      :: taken -> renewal = lost
#endif
      :: !taken -> renewal = busy; trouble = true /* somebody has locked the row; or the answer is an error */
      fi }
  :: atomic { !frozen && (renewal == renewed || renewal == busy || renewal == lost) ->
      if
#ifdef BUSY_COUNTS
      :: renewal == renewed || renewal == busy ->
#else
      :: renewal == renewed ->
#endif
#ifdef RENEWED_FROM_ANSWER
        own = VISIBILITY;
#else
        own = sentOwn;
#endif
        missedOwn = missedSent
      :: renewal == lost -> told = true; trouble = true;
#ifndef LOST_IGNORED
        handler = stopped
#endif
      :: else
      fi; renewal = none; missedSent = false; sentOwn = 0; rest = BEAT }
#ifndef NO_WATCH
  :: atomic { at_work && must_stop -> handler = stopped }
#endif
  od
}

active proctype Other() {
  atomic { left == 0 && handler != asked && !taken -> taken = true }
}
