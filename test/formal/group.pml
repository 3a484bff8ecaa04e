/*
 * Three calls that share a run, any of them interrupted at any moment. What a fiber does between two waits is one step.
 *
 * Call      src/layers/Database/group.ts `makeGroup`: `lead`, `follow`, `leave`
 * pass_on   src/layers/Database/group.ts `passOn`, `give`
 * run       src/layers/Queue/gather.ts, src/layers/Database/writes.ts `turn`: it waits for a connection, takes what has
 *           gathered, or a part of it, and writes; or meets another writer, gives it back and tries again
 */
#define CALLS 3
#define MAX_BUSY 2
#define MAX_INTERRUPTS 2

bool queued[CALLS], taken[CALLS], ended[CALLS], leads[CALLS] /* of each entry; `ended`: its exit is there */
bool leading
bool over[CALLS], dropped[CALLS] /* the call has answered; interrupted before it was taken */
byte made[CALLS], busy, interrupts
byte i

#define all_over (over[0] && over[1] && over[2])
#define any_twice (made[0] > 1 || made[1] > 1 || made[2] > 1)
#define any_after (dropped[0] && made[0] > 0 || dropped[1] && made[1] > 0 || dropped[2] && made[2] > 0)

/* Each call ends, whoever is interrupted while it leads. */
ltl G190_every_call_ends { <> all_over }
/* What is given back and taken again is written once. */
ltl G190_written_once { [] !any_twice }
/* A call that is interrupted before what it shares has begun was never made. */
ltl G191_interrupted_is_never_made { [] !any_after }

/* The lead goes to one that waits: in the product, to the first of them. */
inline pass_on() {
  leading = true;
  if
  :: queued[0] -> leads[0] = true
  :: queued[1] -> leads[1] = true
  :: queued[2] -> leads[2] = true
  :: else -> leading = false
  fi
}

/* `take`: the one that leads, and others as far as they fit. */
inline take_some() {
  i = 0;
  do
#ifdef TAKEN_WAITS_ON
  :: i < CALLS && queued[i] -> taken[i] = true; i++
#else
  :: i < CALLS && queued[i] -> queued[i] = false; taken[i] = true; i++
#endif
  :: i < CALLS && i != me -> i++
  :: i == CALLS -> break
  od;
  i = 0
}

inline each_taken(written) {
  i = 0;
  do
  :: i < CALLS ->
    if
#ifdef TAKEN_WAITS_ON
    :: taken[i] && written -> made[i]++; ended[i] = true
#else
    :: taken[i] && !ended[i] && written -> made[i]++; ended[i] = true
#endif
    :: taken[i] && !ended[i] && !written -> taken[i] = false; queued[i] = true
    :: else
    fi;
    i++
  :: else -> break
  od;
  i = 0
}

proctype Call(byte me) {
  atomic { queued[me] = true;
    if
    :: leading -> goto follow
    :: else -> leading = true; goto lead
    fi }
follow:
  if
  :: atomic { ended[me] -> over[me] = true } goto finished
  :: atomic { leads[me] && !ended[me] } goto lead
  :: atomic { interrupts < MAX_INTERRUPTS -> interrupts++ } goto leave
  fi;
leave:
#ifdef LEAVES_WHILE_TAKEN
  atomic { dropped[me] = !ended[me];
#else
  atomic { !(taken[me] && !ended[me]); dropped[me] = !ended[me];
#endif
#ifndef STAYS_IN_QUEUE
    queued[me] = false;
#endif
#ifndef LEAVES_WITH_THE_LEAD
    if :: leads[me] -> pass_on() :: else fi;
#endif
    over[me] = true }
  goto finished;
lead:
  do
  :: /* the others come first, and a connection: either can be interrupted */
    if
    :: atomic { take_some() }
    :: atomic { interrupts < MAX_INTERRUPTS -> interrupts++; queued[me] = false; dropped[me] = true; over[me] = true;
#ifndef KEEPS_THE_LEAD
        pass_on()
#endif
      }
      goto finished
    fi;
    if
    :: atomic { each_taken(true) }
      atomic { pass_on(); over[me] = true; assert(ended[me]) }
      goto finished
    :: atomic { busy < MAX_BUSY -> busy++; each_taken(false) } /* `giveBack` */
    fi
  od;
finished: skip
}

init { byte n; atomic { do :: n < CALLS -> run Call(n); n++ :: else -> break od; n = 0 } }
