/*
 * A lease that goes by times, here of a named lock, and two who try to get it and to keep it. The present of a statement is
 * the instant at which it began, and it may come to the row later: what it meets there may have been written by one that
 * began after it. A lease that begins in the future was written by a clock that ran ahead (G38), and does not count.
 *
 * acquire   src/layers/Lock/statements.ts `upsert`, `held`; src/layers/engine.ts `now`, `latest`
 * renew     src/layers/Lock/statements.ts `renew`
 *
 * Sweeps of lapsed leases go by the same two presents: src/layers/Queue/statements/settle.ts `leaseOver`.
 */
#ifndef TTL
#define TTL 3 /* ticks */
#endif
#ifndef END
#define END 7 /* the last instant */
#endif
#ifndef TOKENS
#define TOKENS 4
#endif
#ifdef BEGUN_BY_STATEMENT
#define LATEST since
#else
#define LATEST clock
#endif

byte clock
byte token, expires, begun /* the row: `begun` is expires_at - ttl_ms */
byte tokens
byte mine[2], told[2] /* of each party: its token, and up to when it has been told that it has the lock */
bool mistaken

/* A lock has at most one holder at a time. */
ltl G67_one_holder { [] !(told[0] > clock && told[1] > clock) }
/* A renewal or release under an old token changes nothing. */
ltl G70_old_tokens_change_nothing { [] !mistaken }
/* A dead holder's lock is free when its lease ends: it is not held from the future either. */
ltl G69_free_when_its_lease_ends { [] (expires <= clock + TTL) }

#define is_held (expires > since && begun <= LATEST)
#ifdef NO_TOKEN
#define is_mine (token != 0)
#else
#define is_mine (token == mine[w])
#endif

/* Who dies stops here, for ever or for a while. */
proctype Party(byte w) {
  byte since;
  do
  :: tokens < TOKENS -> since = clock;
    atomic {
      if
      :: !is_held -> tokens++; token = tokens; mine[w] = token; begun = since;
#ifdef EXPIRES_BY_ARRIVAL
        expires = clock + TTL + (clock - since);
#else
        expires = since + TTL;
#endif
        told[w] = since + TTL
      :: else
      fi }
  :: mine[w] > 0 -> since = clock;
    atomic {
      if
      :: is_mine -> mistaken = mistaken || token != mine[w];
        begun = since; expires = since + TTL; told[w] = since + TTL
      :: else -> mine[w] = 0; told[w] = 0
      fi }
  :: mine[w] > 0 ->
    atomic {
      if
      :: is_mine -> mistaken = mistaken || token != mine[w]; token = 0; expires = 0; begun = 0
      :: else
      fi;
      mine[w] = 0; told[w] = 0 }
  od
}

proctype Clock() {
  do
  :: clock < END -> clock++
  od
}

init { atomic { run Party(0); run Party(1); run Clock() } }
