/*
 * One worker that looks for work and then waits, beside two jobs that are committed at any moment, while the connection
 * that listens dies without a word and comes back. Between its look and its wait anything may happen. Wakes of other
 * topics, and those that come when nobody is registered, are dropped.
 *
 * Producer   src/layers/Queue/statements/enqueue.ts: the NOTIFY is sent by the commit
 * Channel    src/layers/Wake/PgWake.ts: LISTEN, probe, and all are woken with each connection; src/layers/Wake/WakeHub.ts
 * Wakes      src/workers/fetcher.ts `wakes`: the subscription's latch opens the one that the worker rests on
 * Fetcher    src/workers/fetcher.ts `turns`, `claim`, `rest`; it begins where the last claim has come to (docs/adr/0046)
 */
#ifndef MAX_BREAKS
#define MAX_BREAKS 1
#endif

mtype = { mute, deaf, listening } /* deaf: the connection is dead, and nobody has noticed */

mtype channel = mute
bool there[2], taken[2]      /* committed, claimed: 0 is before 1 in the order of claims */
bool sent[2], stranger       /* notifications under way: of the jobs' queue, of another's */
bool registered, latch, nudge
bool hinted                  /* the next claim begins after job 0 */
byte breaks

#ifdef SILENT
/* Without any wake all work is found by polling. */
ltl G59_found_by_polling { [] ((there[0] -> <> taken[0]) && (there[1] -> <> taken[1])) }
#else
/* Without any poll no worker sleeps beside a job that it could claim: not even when the connection has been lost. */
ltl G193_none_is_missed { [] ((there[0] -> <> taken[0]) && (there[1] -> <> taken[1])) }
/* A wake does not come before its job can be claimed; a rollback sends none. */
ltl G63_no_wake_before_its_job { [] ((sent[0] -> there[0]) && (sent[1] -> there[1])) }
#endif

/* hub.wake: who listens to the topic; nobody does before it is registered. */
inline wake() { if :: registered -> latch = true :: else fi }

proctype Producer(byte n) {
#ifdef NOTIFY_FIRST
  atomic { if :: channel == listening -> sent[n] = true :: else fi }
#endif
  if
  :: atomic { there[n] = true;
#ifndef NOTIFY_FIRST
      if :: channel == listening -> sent[n] = true :: else fi
#endif
    }
  :: skip /* ROLLBACK */
  fi
}

/* Of another queue: nobody here listens to its topic. */
proctype Stranger() {
  atomic { if :: channel == listening -> stranger = true :: else fi }
}

proctype Channel() {
  do
  :: atomic { channel == mute ->
#ifdef WAKE_ALL_FIRST
      wake()
#else
      channel = listening
#endif
    } /* LISTEN */
    atomic {
#ifdef WAKE_ALL_FIRST
      channel = listening
#elif defined(NO_WAKE_ALL)
      skip
#else
      wake() /* hub.wakeAll: what was sent meanwhile is lost */
#endif
    }
  :: atomic { channel == listening && sent[0] -> sent[0] = false; wake() }
  :: atomic { channel == listening && sent[1] -> sent[1] = false; wake() }
  :: atomic { channel == listening && stranger -> stranger = false }
  :: atomic { channel == deaf -> channel = mute } /* the probe finds out */
  od
}

proctype Break() {
  do
  :: atomic { breaks < MAX_BREAKS && channel == listening ->
      breaks++; channel = deaf; sent[0] = false; sent[1] = false; stranger = false }
  :: else -> break
  od
}

proctype Wakes() {
  do
  :: atomic { latch -> latch = false }
    atomic { hinted = false; nudge = true }
  od
}

proctype Fetcher() {
  bool got, wasHinted;
#ifndef REGISTER_LATE
  registered = true;
#endif
  do
  :: atomic { /* one job at a time: it is full, so there may be more, after it */
      wasHinted = hinted; hinted = false;
      if
      :: there[0] && !taken[0] && !wasHinted -> taken[0] = true; got = true
      :: (wasHinted || !there[0] || taken[0]) && there[1] && !taken[1] -> taken[1] = true; got = true
      :: else -> got = false
      fi }
    /* The answer */
#ifdef REGISTER_LATE
    registered = true;
#endif
    if
    :: atomic { got -> hinted = true }
    :: !got && wasHinted -> skip /* nothing more there, not nothing at all */
    :: !got && !wasHinted ->
#ifdef NUDGE_CLOSED_FIRST
      nudge = false;
#endif
      if
      :: nudge
#if defined(SILENT) && !defined(NO_POLL)
      :: true /* the safety poll */
#endif
      fi;
#ifndef NUDGE_CLOSED_FIRST
      nudge = false
#endif
    fi
  od
}

init { atomic { run Producer(0); run Producer(1); run Wakes(); run Fetcher();
#ifndef SILENT
    run Stranger(); run Channel(); run Break()
#endif
  } }
