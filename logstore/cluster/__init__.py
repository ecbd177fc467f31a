"""One host of a cluster: the protocol of `logstore.replica` on sockets, on the log's files and on a metadata store.

Rooms below do not know it: a sidecar without a cluster loads none of this. Its own rooms, from the top: `adoption`;
`copies`, `epochs`, `links` and `tier`, none of which knows another; `streams`; `members`. Beside them is what puts
their parts together (`running`, `host`, `part`), and what several of them share.
"""
