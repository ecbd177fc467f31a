"""What a principal may do, and how fast: access control lists and quotas, without I/O.

`acls` has the lists and the decision, `authorizer` asks them for the request handlers, `quotas` has the limits and the
throttling, `entries` their form in the ledger. This package does not know requests: `logstore.kafka.rights` has them.
"""
