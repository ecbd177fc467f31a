"""The online scheduler of Peace (SGuard, end of section 5, section 6.2): requests arrive at any time, chunks start when
it is their turn and their path is free. Sans-I/O: times and randomness come in, outcomes go out; store what changed,
then tell.

**The queue.** Requests stand in the order of their rank: the time of submission, less `priority_ms` for each step of
priority; equal ranks in the order of submission. A rank never changes (unless a request is re-submitted larger), so
ageing is built in: a request of priority p can be overtaken by one of priority q > p only if that arrives less than
(q − p) · `priority_ms` after it. The chunks of a request are served together, lowest first, before those of the next,
so that a checkpoint's chunks stay close together, unless the planner plans jointly (below). Writes, recovery reads and
copies stand in one queue and share one plan.

**CONTINUOUS.** Capacities are tokens in flight. The *head* is the first request with a chunk waiting. If its next chunk
has no free path, it reserves:

1. While its own resource (every chain of it needs one: its sending side for a write) is used up, by its own chunks
   mostly, it is owed the next token of that. Nothing else is held back: a writer at its full rate costs others nothing.
2. Then it reserves a concrete chain, on hosts that are free now if links are all it lacks, else in the network with
   nothing in flight. Of every resource of that chain it holds the tokens that are free and is owed the next that come
   back. Others start only with what is left beyond this (backfill, in order of rank). When nothing is owed any more, or
   some other path is free earlier, it starts.

*Together.* With a planner that plans jointly (`repaired`) an event first plans all that may profit from what it freed
in one go: what would be late otherwise, then as many chunks as fit (`together`). That may pass over the head; what
follows is as above, so the head starts if it still can, else it reserves at this same event. Once it has reserved, a
plan of all together may use what it holds too if one of the head's chunks starts by it; else that plan is not made.

*Gathered.* When many submit or complete at once, chains planned at the first event leave to the later ones what happens
to be left, and each chunk's successor inherits its place: the pattern of the first moment stays. So with `gather_ms`
above 0 an event is recorded but starts nothing; `gather_ms` after the first, or after a small part of what chunks take
if that is less, `plan` starts what all of them allow (`plan_at_ms`; there is no clock in here). Tokens come back, and
pay what is owed, at the event itself. In what follows T is then the longest time from a chunk's go to the plan after
its end, at most `gather_ms` more than the chunk.

*Bound.* Let a round be a span of time at whose end all chunks have ended that were in flight at its beginning; if a
chunk takes at most T from go to its end, a round takes at most T. **A request with C chunks ahead of it starts its next
chunk within 2 (C + 1) rounds, so within 2 (C + 1) T**, as long as nothing new comes ahead of it.
Proof. Only the head needs looking at: it gets one chunk started within two rounds, and then C is one less, or it was
the request's own. In step 1 all tokens of the own resource are in use by chunks in flight (left = 0, nothing held), and
nobody can take one that comes back, since it pays what is owed first. So when the first of these chunks ends, at the
latest with the round, step 1 is over. In step 2 let x be a resource of the chain that needs d(x) tokens, of which h(x)
were held at once, so d(x) − h(x) ≤ capacity(x) − h(x) are owed. Since the chain fits into the network with nothing in
flight, the missing ones are all in use by chunks in flight at this moment. Tokens of x that come back pay what is
owed before anybody else can have them, and held ones are given to nobody. So when all chunks that were in flight at
this moment have ended, at the latest with the second round, nothing is owed and the head starts. ∎
The bound counts chunk times, not completions: while one slow chunk holds the head up, others may complete any number of
chunks elsewhere, and holding them back would help nobody. Of the completions in the head's way there are at most as
many as chunks were in flight when it reserved: 2 (C + 1) · F, if never more than F are in flight.
*What moves it.* "Ahead" counts what comes ahead later: chunks that fail or lose a host are ahead again (attempts are
bounded), requests of higher priority (bounded by their age, above), a larger re-submission goes to the end itself. A
lost host that is part of the reserved chain, a change of the head's own request (a suspect, a source that is lost or
back, fewer chunks), and a restart begin the head's two rounds anew. A request that has no path while hosts are lost is
*unreachable*: it lets the next be the head, keeps its rank, and the bound counts from the moment its hosts are back. A
planner that picks at random may also miss a path in all of many tries: one unreachable unit is tried again at every
event, in turn, and comes back when a path is found.

*Work.* An event looks at those requests only that wait for a resource that it freed: `index`. It searches in vain at
most `max_tries` times (for a class of like requests at most twice), or plans at most MAX_TOGETHER groups of requests
together, and goes on at the next event. Events that were gathered may do so much each.

**TIMESTEPS.** After the paper: `timesteps` tells how. *Bound:* **a request with C chunks ahead of it starts its next
chunk within C + 1 timesteps**: a timestep begins only if the first request of the queue gets a chunk in it. What moves
it is the same.
"""

from scheduler.peace.online.records import (
    GATHER_MS,
    ChunkRecord,
    ChunkStart,
    EventOutcome,
    HostStatus,
    InFlight,
    Mode,
    QueuePosition,
    RequestRecord,
    RequestStatus,
    ResourceUse,
    Settings,
    Status,
    Stragglers,
    Submission,
)
from scheduler.peace.online.scheduler import OnlineScheduler
from scheduler.peace.online.states import ChunkState, RequestState

__all__ = [
    "GATHER_MS",
    "ChunkRecord",
    "ChunkStart",
    "ChunkState",
    "EventOutcome",
    "HostStatus",
    "InFlight",
    "Mode",
    "OnlineScheduler",
    "QueuePosition",
    "RequestRecord",
    "RequestState",
    "RequestStatus",
    "ResourceUse",
    "Settings",
    "Status",
    "Stragglers",
    "Submission",
]
