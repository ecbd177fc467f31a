"""Replication of chunks between hosts: the owner of a stream, the replicas, takeover and repair, without I/O.

Every chunk of a stream has a replica set and an epoch of its own. The owner appends to the stream's open chunk; a batch
is acknowledged when every member of the set has it durably. When a member fails, the owner seals the chunk at the
acknowledged length and opens the next one with another set. A new owner first fences a member of the open chunk, after
which nobody can acknowledge anything in it. docs/replication.md has the protocol, its invariants and their proof.

`logstore.cluster` runs this protocol on hosts, and tests/replica in a simulation.

| module | contents |
|---|---|
| `registrations` | what the metadata store holds of a stream, and the steps from one registration to the next |
| `register` | the requests to the metadata store and its answers |
| `stored_registrations` | performs these requests on a metadata store; the only module that waits for something |
| `messages` | the messages between owners and replicas |
| `effects` | what a state machine asks its host to do |
| `host_state` | what the owners of all streams on one host share |
| `copy_tokens`, `growths` | which of a host's streams may have a chunk copied now, and which go on with more members |
| `placing`, `spreading` | where the chunks of a stream may lie, and how far apart |
| `window` | the owner's batches that are not acknowledged yet |
| `appending`, `chunk_end` | the open chunk as its owner sees it, and when it ends |
| `patience`, `suspects` | how long an owner waits for members, and which of them are not chosen for a while |
| `owner`, `owner_states`, `owner_reports` | the owner of a stream, its life as a table, what it tells the operator |
| `trimming` | what an owner is asked to trim, and to note of the tier |
| `fencing` | what the members of a fenced chunk answered, and the length at which the chunk is sealed |
| `repair` | copies of sealed chunks, up to the number that the stream is to have |
| `replica`, `known_replicas` | one host's replicas of the chunks of all streams, and their states |
| `identity` | which disk a host has, and whether it is the one that the metadata store knows |
"""
