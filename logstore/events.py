"""Every event that a sidecar reports to its operator. docs/operations.md explains each of them.

Invariant: names are unique; a test compares this module with the table in docs/operations.md.
"""

from typing import Final

from logstore.base.certificate_events import CERTIFICATE_EXPIRES as CERTIFICATE_EXPIRES
from logstore.base.certificate_events import CERTIFICATES_LOADED as CERTIFICATES_LOADED
from logstore.base.certificate_events import CERTIFICATES_UNUSABLE as CERTIFICATES_UNUSABLE
from logstore.base.certificate_events import SECRET_LOADED as SECRET_LOADED
from logstore.base.certificate_events import SECRET_UNUSABLE as SECRET_UNUSABLE
from logstore.base.events import Level, LogEvent
from logstore.base.http.events import CANNOT_ACCEPT as CANNOT_ACCEPT
from logstore.base.http.events import CONNECTION_CRASHED as CONNECTION_CRASHED
from logstore.base.http.events import CONNECTION_REFUSED as CONNECTION_REFUSED
from logstore.base.metadata.events import METADATA_AWAY as METADATA_AWAY
from logstore.base.metadata.events import METADATA_BACK as METADATA_BACK

# ---- the process

RECOVERED: Final = LogEvent("recovered")
READY: Final = LogEvent("ready")
HANGUP_IGNORED: Final = LogEvent("hangup_ignored")
USERS_CHANGED: Final = LogEvent("users_changed", caused_by_clients=True)
STOPPING: Final = LogEvent("stopping")
STOPPED: Final = LogEvent("stopped")
NO_USERS: Final = LogEvent("no_users", Level.WARNING)
FEWER_CONNECTIONS: Final = LogEvent("fewer_connections", Level.WARNING)
DISK_FULL: Final = LogEvent("disk_full", Level.WARNING)
DISK_FULL_OVER: Final = LogEvent("disk_full_over")
DISK_LOW: Final = LogEvent("disk_low", Level.WARNING)
DISK_LOW_OVER: Final = LogEvent("disk_low_over")
STATE_RECLAIMED: Final = LogEvent("state_reclaimed")
STATE_NOT_RECLAIMED: Final = LogEvent("state_not_reclaimed", Level.WARNING)

PAGE_CRASHED: Final = LogEvent("page_crashed", Level.ERROR, caused_by_clients=True)

# ---- clients

CONNECTION_CLOSED: Final = LogEvent("connection_closed", folded_by="client", counted_by="why", caused_by_clients=True)
LOGIN_FAILED: Final = LogEvent(
    "login_failed", Level.WARNING, folded_by="client", counted_by="why", caused_by_clients=True
)
REQUEST_CRASHED: Final = LogEvent("request_crashed", Level.ERROR, folded_by="client", caused_by_clients=True)
READ_FAILED: Final = LogEvent("read_failed", Level.WARNING, caused_by_clients=True)
LOOK_UP_FAILED: Final = LogEvent("look_up_failed", Level.WARNING, caused_by_clients=True)
LOOK_UP_INEXACT: Final = LogEvent("look_up_inexact", Level.WARNING, caused_by_clients=True)
NO_PRODUCER_ID: Final = LogEvent("no_producer_id")
TOPIC_CREATED: Final = LogEvent("topic_created", caused_by_clients=True)
TOPIC_GROWN: Final = LogEvent("topic_grown", caused_by_clients=True)
TOPIC_ALTERED: Final = LogEvent("topic_altered", caused_by_clients=True)
TOPIC_DELETED: Final = LogEvent("topic_deleted", caused_by_clients=True)
ACLS_CHANGED: Final = LogEvent("acls_changed", caused_by_clients=True)
QUOTAS_CHANGED: Final = LogEvent("quotas_changed", caused_by_clients=True)
GROUP_REBALANCED: Final = LogEvent("group_rebalanced", caused_by_clients=True)

# ---- clusters

CLUSTER_JOINED: Final = LogEvent("cluster_joined")
HOST_NAME_AWAITED: Final = LogEvent("host_name_awaited")
CLUSTER_LEFT: Final = LogEvent("cluster_left", Level.WARNING)
PLACE_CHANGED: Final = LogEvent("place_changed")
PLACE_UNREADABLE: Final = LogEvent("place_unreadable", Level.ERROR)
METADATA_AWAITED: Final = LogEvent("metadata_awaited", Level.WARNING, folded_by="host")
METADATA_UNUSABLE: Final = LogEvent("metadata_unusable", Level.ERROR)
METADATA_ENTRY_DAMAGED: Final = LogEvent("metadata_entry_damaged", Level.ERROR, folded_by="key")
STREAM_OWNED: Final = LogEvent("stream_owned", folded_by="stream")
STREAM_DEPOSED: Final = LogEvent("stream_deposed", folded_by="stream")
STREAM_UNAVAILABLE: Final = LogEvent("stream_unavailable", Level.WARNING, folded_by="stream")
MEMBER_FAILED: Final = LogEvent("member_failed", Level.WARNING)
REPLICA_DAMAGED: Final = LogEvent("replica_damaged", Level.ERROR)
REPLICAS_REMOVED: Final = LogEvent("replicas_removed")
COPIES_COORDINATED: Final = LogEvent("copies_coordinated")
COPIES_PLANNED: Final = LogEvent("copies_planned")
COPIES_UNPLANNED: Final = LogEvent("copies_unplanned", Level.WARNING)
COPY_PLANNER_CRASHED: Final = LogEvent("copy_planner_crashed", Level.ERROR)
COPY_PLANNER_MISSING: Final = LogEvent("copy_planner_missing", Level.WARNING)
STREAM_LED: Final = LogEvent("stream_led", folded_by="stream")
PRODUCERS_NOT_READ: Final = LogEvent("producers_not_read", Level.WARNING, folded_by="stream")
PRODUCERS_FORGOTTEN: Final = LogEvent("producers_forgotten", Level.WARNING, folded_by="stream")
PRODUCERS_EXPIRED: Final = LogEvent("producers_expired", folded_by="stream")
EPOCH_MAY_REPEAT: Final = LogEvent("epoch_may_repeat", Level.WARNING)
LEDGER_NOT_READ: Final = LogEvent("ledger_not_read", Level.WARNING)
RETENTION_WAITS: Final = LogEvent("retention_waits", Level.WARNING, folded_by="stream")
TOPIC_UNREADABLE: Final = LogEvent("topic_unreadable", Level.ERROR)

# ---- links to other hosts

PEER_CONNECTED: Final = LogEvent("peer_connected")
PEER_LOST: Final = LogEvent("peer_lost", Level.WARNING)
PEER_NOT_REACHED: Final = LogEvent("peer_not_reached", Level.WARNING)
PEER_DISCONNECTED: Final = LogEvent("peer_disconnected", Level.WARNING)
PEER_SLOW: Final = LogEvent("peer_slow", Level.WARNING)
PEER_SLOW_OVER: Final = LogEvent("peer_slow_over")
PEER_MESSAGE_UNSENT: Final = LogEvent("peer_message_unsent", Level.ERROR)
PEER_MESSAGE_CRASHED: Final = LogEvent("peer_message_crashed", Level.ERROR, folded_by="host")
LINK_CLOSED: Final = LogEvent("link_closed", folded_by="client", caused_by_clients=True)

# ---- streams

APPEND_FAILED: Final = LogEvent("append_failed", Level.WARNING)
BACKLOG_NOT_WRITTEN: Final = LogEvent("backlog_not_written", Level.WARNING)
CHUNK_NOT_SYNCED: Final = LogEvent("chunk_not_synced", Level.ERROR)
JOURNAL_FAILED: Final = LogEvent("journal_failed", Level.WARNING)
JOURNAL_DAMAGED: Final = LogEvent("journal_damaged", Level.ERROR)
JOURNAL_REPLAYED: Final = LogEvent("journal_replayed")
TRIMMED: Final = LogEvent("trimmed", caused_by_clients=True)
CHUNK_CLEANED: Final = LogEvent("chunk_cleaned")
CLEANING_FAILED: Final = LogEvent("cleaning_failed", Level.WARNING)
READER_RELEASED: Final = LogEvent("reader_released", Level.WARNING)
READER_REMOVED: Final = LogEvent("reader_removed")
TORN_END_CUT: Final = LogEvent("torn_end_cut", Level.WARNING)
APPEND_GROUP_WITHOUT_END_CUT: Final = LogEvent("append_group_without_end_cut", Level.WARNING)
DURABLE_DATA_DAMAGED: Final = LogEvent("durable_data_damaged", Level.ERROR)
DURABLE_DATA_LOST: Final = LogEvent("durable_data_lost", Level.ERROR)
OFFSETS_LOST: Final = LogEvent("offsets_lost", Level.ERROR)
INDEX_DOES_NOT_MATCH_ITS_CHUNK: Final = LogEvent("index_does_not_match_its_chunk", Level.WARNING)
SCRUB_FOUND_DAMAGE: Final = LogEvent("scrub_found_damage", Level.ERROR)
SCRUB_COULD_NOT_READ: Final = LogEvent("scrub_could_not_read", Level.WARNING)
SCRUB_COMPLETED: Final = LogEvent("scrub_completed")
QUIET_TABLE_DAMAGED: Final = LogEvent("quiet_table_damaged", Level.WARNING)
QUIET_STREAM_DIFFERS: Final = LogEvent("quiet_stream_differs", Level.WARNING)
REPLICA_FOUND_DAMAGED: Final = LogEvent("replica_found_damaged", Level.ERROR)
PRODUCER_SNAPSHOTS_REBUILT: Final = LogEvent("producer_snapshots_rebuilt")

# ---- the tier

CHUNK_TIERED: Final = LogEvent("chunk_tiered")
LOCAL_COPIES_REMOVED: Final = LogEvent("local_copies_removed")
TIER_AWAY: Final = LogEvent("tier_away", Level.WARNING)
TIER_BACK: Final = LogEvent("tier_back")
TIER_CHUNK_NOT_STORED: Final = LogEvent("tier_chunk_not_stored", Level.ERROR, folded_by="stream")
TIER_CHUNK_NOT_REGISTERED: Final = LogEvent("tier_chunk_not_registered", Level.ERROR, folded_by="stream")
TIER_OBJECTS_MISSING: Final = LogEvent("tier_objects_missing", Level.ERROR, folded_by="stream")
TIER_SWEPT: Final = LogEvent("tier_swept")

# ---- epochs

STAGING_CUT: Final = LogEvent("staging_cut")
STAGED_DATA_EXPIRED: Final = LogEvent("staged_data_expired")
EPOCH_ROLLED_FORWARD: Final = LogEvent("epoch_rolled_forward")
EPOCH_STUCK: Final = LogEvent("epoch_stuck", Level.WARNING)
GROUP_WAITS: Final = LogEvent("group_waits", Level.WARNING)
GROUP_REFUSED: Final = LogEvent("group_refused", Level.WARNING)
EPOCH_TOPIC_GONE: Final = LogEvent("epoch_topic_gone", Level.WARNING)
