"""One host of a cluster: the protocol of `logstore.replica` on sockets, on the log's files and on a metadata store.

Rooms below do not know it: a sidecar without a cluster loads none of this.
"""
