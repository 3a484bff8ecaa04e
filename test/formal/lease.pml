/*
 * One job, two workers, leases and their tokens. Each statement of the product is one atomic step, as it is under READ
 * COMMITTED; what is between two steps (the network, the event loop, a process that stands still and comes back) may take
 * any time, so a lease may end between any two. Workers die anywhere, answers are lost, settles are repeated.
 *
 * claim, lapsed   src/layers/Queue/statements/claim.ts, src/layers/Queue/moveLapsed.ts
 * settle, renew   src/layers/Queue/statements/settle.ts, src/layers/Queue/statements/renew.ts
 * Worker          src/workers/fetcher.ts, runJob.ts, decide.ts, acknowledger.ts, transactional.ts
 * Keeper          src/workers/leaseKeeper.ts: its renewals are under way beside everything else, and may come late
 */
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#ifndef MAX_RELEASES
#define MAX_RELEASES 1 /* endings that give the attempt back: a shutdown, a snooze */
#endif
#ifndef MAX_TROUBLES
#define MAX_TROUBLES 2 /* deaths and lost answers, in all */
#endif

mtype = { waiting, leased, done, dead }
mtype = { idle, asking, running, ending }

/* The job's row. `over`: its lease has ended by the server's clock. `locked`: by whose open transaction, plus one. */
mtype row = waiting
byte token, attempt, locked
bool over
byte tokens, effects, releases, troubles

/* Of each worker: what it does, and the token of its claim. */
mtype phase[2] = idle
byte mine[2]
bool killed[2]

/*
 * What only properties look at. `granted`: by what the server has answered, or will, the worker has the lease still.
 * `holder`: whose claim the row is under, plus one; `claimed`: which claim. `acked`: by a transactional handler.
 */
bool granted[2]
byte claims, claimed, claimOf[2], holder, acked
bool stranger

#define is_ended (row == done || row == dead)
#ifdef NO_FENCE
#define has_token(t) (row == leased)
#else
#define has_token(t) (row == leased && token == t)
#endif

/* At most one lease is valid at a time. */
ltl G19_one_valid_lease { [] !(granted[0] && granted[1]) }
/* A settle under a token that is not the job's changes nothing. */
ltl G28_no_settle_by_a_stranger { [] !stranger }
/* A transactional handler's writes commit together with its ack or not at all, and once. */
ltl G120_effects_with_the_ack { [] (effects == acked && effects <= 1) }
/* No more attempts than allowed, whatever dies. */
ltl G52_attempts_are_bounded { [] (attempt <= MAX_ATTEMPTS) }
/* A lease that ended gives the job back or buries it: every job is at last done or dead. */
ltl G31_every_job_ends { <> is_ended }

/* `claim`: a free row under a new token. Answers 0 when there is none. */
inline claim(w) {
  if
#ifdef CLAIM_LEASED
  :: (row == waiting || row == leased) && locked == 0 ->
#else
  :: row == waiting && locked == 0 ->
#endif
    attempt++; row = leased; over = false;
#ifdef ATTEMPT_AS_TOKEN
    token = attempt;
#else
    tokens++; token = tokens;
#endif
    mine[w] = token; claims++; claimed = claims; claimOf[w] = claims; holder = w + 1; granted[w] = true
  :: else -> mine[w] = 0
  fi
}

/* The row leaves its lease, by the settle of worker w. */
inline leave(w, outcome) {
  stranger = stranger || claimed != claimOf[w];
  row = outcome; token = 0; claimed = 0; holder = 0; over = false; granted[w] = false;
  if :: gives -> attempt--; gives = false :: else fi
}

#ifdef NO_SPENT_CHECK
#define or_back waiting
#else
#define or_back (attempt >= MAX_ATTEMPTS -> dead : waiting)
#endif

/* `settle` of the acknowledger: passes over a locked row and is repeated then, or when its answer is lost. */
inline settle(w, outcome) {
  do
  :: atomic { !(locked > 0 && has_token(mine[w])) ->
      if :: has_token(mine[w]) -> leave(w, outcome) :: else fi }
    if
    :: break
    :: atomic { troubles < MAX_TROUBLES -> troubles++ }
    fi
  od
}

/* `transactional`: the handler's writes, its ack as the fence, COMMIT or ROLLBACK. */
inline transaction(w) {
#ifdef EFFECTS_APART
  effects++;
#endif
  /* The ack waits for a row that is locked, and has it locked then. Without the lease the transaction fails */
  atomic { !(locked > 0 && has_token(mine[w])) -> if :: has_token(mine[w]) -> locked = w + 1 :: else fi }
  if
  :: atomic { locked == w + 1 -> locked = 0; leave(w, done); acked++;
#ifndef EFFECTS_APART
      effects++
#endif
    }
    if
    :: skip
    :: atomic { troubles < MAX_TROUBLES -> troubles++ }
      settle(w, or_back) /* the answer to COMMIT is lost: settled as a failure, which finds out */
    fi
#ifdef UNFENCED_COMMIT
  :: atomic { locked != w + 1 -> effects++ } /* COMMIT, though nothing was acked */
#endif
  :: atomic { locked = (locked == w + 1 -> 0 : locked) }
    settle(w, or_back)
  fi
}

inline forget(w) {
  phase[w] = idle; mine[w] = 0; claimOf[w] = 0; gives = false; seen = 0
}

proctype Worker(byte w) {
  byte seen;
  bool gives;
  do
  :: {
      do
      :: atomic { !is_ended -> phase[w] = asking }
        atomic { claim(w); seen = (mine[w] == 0 && row == leased && over -> token : 0) }
        if
#ifndef NO_LAPSE
        :: seen > 0 -> /* `lapsed`: what the statement before has read is moved, if it is so still */
          atomic {
            if
#ifdef NO_LAPSE_RECHECK
            :: row == leased && token == seen && locked == 0 ->
#else
            :: row == leased && token == seen && locked == 0 && over ->
#endif
              token = 0; claimed = 0; holder = 0; over = false; row = or_back
            :: else
            fi }
#endif
        :: mine[w] > 0 -> phase[w] = running;
          phase[w] = ending;
          if
          :: settle(w, done)
          :: settle(w, or_back)
          :: atomic { releases < MAX_RELEASES -> releases++; gives = true } settle(w, waiting)
          :: transaction(w)
          fi
        :: else
        fi;
        atomic { forget(w) }
      od
    } unless { atomic { killed[w] -> killed[w] = false; forget(w); locked = (locked == w + 1 -> 0 : locked) } }
  od
}

/* A renewal of all that is in hand is sent at any time, comes at any time, and is answered or not. */
proctype Keeper(byte w) {
  byte sent;
  do
  :: atomic { phase[w] == running || phase[w] == ending -> sent = mine[w] }
    atomic {
      if
#ifdef NO_RENEWAL_CHECK
      :: row == leased && locked == 0 -> over = false; granted[w] = true
#else
      :: has_token(sent) && locked == 0 -> over = false; granted[w] = true
#endif
      :: else /* lost, gone, or busy */
      fi; sent = 0 }
  od
}

proctype Clock() {
  do
  :: atomic { row == leased && !over -> over = true; granted[holder - 1] = false }
  od
}

proctype Death() {
  do
  :: atomic { troubles < MAX_TROUBLES && phase[0] != idle -> troubles++; killed[0] = true }
  :: atomic { troubles < MAX_TROUBLES && phase[1] != idle -> troubles++; killed[1] = true }
  od
}

init { atomic { run Worker(0); run Worker(1); run Keeper(0); run Keeper(1); run Clock(); run Death() } }
