"""One host of a cluster: the protocol of `logstore.replica` on sockets, on the log's files and on a metadata store.

Rooms below do not know it: a sidecar without a cluster loads none of this. Of its own rooms, adoption lies at the top;
then copies, epochs, links and tier, none of which knows another; then streams, then members. Modules beside them put
their parts together, or have what several of them share; an import contract in pyproject.toml gives each its layer.
"""
