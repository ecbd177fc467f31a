"""Replication of chunks between hosts: the owner of a stream, the replicas, takeover and repair, without I/O.

Every chunk of a stream has a replica set and an epoch of its own. The owner appends to the stream's open chunk; a batch
is acknowledged when every member of the set has it durably. When a member fails, the owner seals the chunk at the
acknowledged length and opens the next one with another set. A new owner first fences a member of the open chunk, after
which nobody can acknowledge anything in it. docs/replication.md has the protocol, its invariants and their proof.

Nothing runs this protocol yet but the simulation in tests/replica: the sidecar still keeps each stream on one host.

| module | contents |
|---|---|
| `registrations` | what the metadata store holds of a stream, and the steps from one registration to the next |
| `register` | the requests to the metadata store and its answers |
| `stored_registrations` | performs these requests on a metadata store; the only module that waits for something |
| `messages` | the messages between owners and replicas |
| `effects` | what a state machine asks its host to do |
| `window` | the owner's batches that are not acknowledged yet |
| `owner` | the owner of a stream, from its claim to its end |
| `fencing` | what the members of a fenced chunk answered, and the length at which the chunk is sealed |
| `repair` | copies of sealed chunks, up to the number that the stream is to have |
| `replica` | one host's replicas of the chunks of all streams |
| `identity` | which disk a host has, and whether it is the one that the metadata store knows |
"""
