"""The online scheduler of Peace (SGuard, end of section 5, section 6.2): requests arrive at any time, chunks start when
it is their turn and their path is free. Sans-I/O: times and randomness come in, outcomes go out. The caller stores the
changes of an outcome first and notifies writers after that.

**The queue.** Requests are ordered by their rank: the time of submission, less `priority_ms` for each step of
priority; equal ranks in the order of submission. A rank never changes (unless a request is re-submitted larger), so
waiting counts: a request of priority p can be overtaken by one of priority q > p only if that arrives less than
(q − p) · `priority_ms` after it. The chunks of a request are served together, lowest first, before those of the next,
so that a checkpoint's chunks stay close together, unless the planner plans jointly (below). Writes, recovery reads and
copies share one queue and one plan.

**CONTINUOUS.** Capacities are tokens in flight. The *head* is the first request with a chunk waiting. If its next chunk
has no free path, it reserves:

1. While the head's own resource (the resource that each of its chains needs: for a write, the writer's sending side)
   has no free token, mostly because of the request's own chunks, the head is owed the next token of that resource.
   Nothing else is held back: a writer at its full rate costs others nothing.
2. Then the head reserves a concrete chain: on hosts that are free now if only links are missing, else in the network
   with nothing in flight. Of every resource of that chain it holds the free tokens and is owed the next tokens that
   come back. Other requests start only with the tokens beyond these (backfill, in order of rank). The head starts when
   nothing is owed any more, or earlier if another path becomes free.

*Joint planning.* With a planner that plans jointly (`repaired`) an event first plans all requests that can use the
freed tokens in one plan: first the chunks that would be late otherwise, then as many chunks as fit (`joint_planner`).
That plan may pass over the head. The steps above follow, so the head starts if it still can, else it reserves at the
same event. After the head has reserved, a joint plan may also use the held tokens if it starts a chunk of the head;
else that plan is not made.

*Gathering.* When many requests are submitted or many chunks complete at once, the chains planned at the first event
restrict those of the later events, and each chunk's successor inherits its chain: the pattern of the first moment
stays. So with `gather_ms` above 0 an event is recorded but starts nothing. `gather_ms` after the first event, or after
a small share of a chunk's time if that is less, `plan` starts the chunks that all these events allow (`plan_at_ms`;
there is no clock here). Tokens come back, and pay what is owed, at the event itself. In the bound below, T is then the
longest time from a chunk's go to the plan after its end, at most `gather_ms` more than the chunk's time.

*Bound.* Let a round be a span of time at whose end all chunks have ended that were in flight at its beginning. If a
chunk takes at most T from its go to its end, a round takes at most T. **A request with C chunks ahead of it starts its
next chunk within 2 (C + 1) rounds, so within 2 (C + 1) T**, as long as nothing new comes ahead of it.

Proof. It is enough to consider the head: it starts a chunk within two rounds, and then C is one less, or the chunk was
the request's own. In step 1 all tokens of the own resource are in use by chunks in flight (left = 0, nothing held), and
no other request can take a token that comes back, since it pays what the head is owed first. So when the first of these
chunks ends, at the latest with the round, step 1 is over. In step 2 let x be a resource of the chain that needs d(x)
tokens, of which h(x) were held at once, so d(x) − h(x) ≤ capacity(x) − h(x) are owed. Since the chain fits into the
network with nothing in flight, the missing ones are all in use by chunks in flight at this moment. Tokens of x that
come back pay what is owed before any other request can take them, and held tokens stay held. So when all chunks that
were in flight at this moment have ended, at the latest with the second round, nothing is owed and the head starts. ∎

The bound counts chunk times, not completions: while one slow chunk delays the head, others may complete any number of
chunks elsewhere, and to hold them back would not help the head. The completions that the head must wait for are at most
the chunks in flight when it reserved: 2 (C + 1) · F in all, if never more than F are in flight.

*Changes of the bound.* C also counts chunks that come ahead later: chunks that fail or lose a host (their attempts are
bounded) and requests of higher priority (bounded by their age, above); a request that is re-submitted larger goes to
the end itself. The head's two rounds start again after the loss of a host of the reserved chain, a change of the head's
own request (a suspect, a source that is lost or back, fewer chunks), and a restart. A request without a path while
hosts are lost is *unreachable*: the next request becomes the head, the unreachable one keeps its rank, and the bound
counts from the moment its hosts are back. A planner that picks at random may also miss a path in all of many tries: at
every event one unreachable unit is tried again, in turn, and returns when a path is found.

*Work.* An event examines only the requests that wait for a resource that it freed: `index`. It makes at most
`max_tries` unsuccessful searches (at most two for a class of like requests), or plans at most MAX_TOGETHER groups of
requests jointly, and continues at the next event. Gathered events have this budget for each event.

**TIMESTEPS.** After the paper, as described in `timesteps`. *Bound:* **a request with C chunks ahead of it starts its
next chunk within C + 1 timesteps**: a timestep begins only if the first request of the queue gets a chunk in it. The
same events change this bound.
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
