"""What happens to topics and groups is in the log."""

import json
from datetime import timedelta
from pathlib import Path

from tests.kafka.wire_client import WireClient
from tests.support.sidecar import Sidecar


def test_what_happens_to_topics_and_groups_is_in_the_log(tmp_path: Path) -> None:
    """Topics that are made, grown, altered and deleted, and each new generation of a group, are lines of their own that
    name what they are about.
    """
    with Sidecar(tmp_path / "data", "--log-format", "json") as sidecar, WireClient(sidecar.port) as client:
        client.create_topic("orders", 2)
        client.request(37, 1, topics=[{"name": "orders", "count": 3, "assignments": None}])
        change = {"name": "retention.ms", "config_operation": 0, "value": "5000"}
        client.request(44, 0, resources=[{"resource_type": 2, "resource_name": "orders", "configs": [change]}])
        protocols = [{"name": "range", "metadata": b""}]
        session = timedelta(seconds=10)
        joining = {"group_id": "readers", "protocol_type": "consumer", "protocols": protocols}
        client.request(11, 2, session_timeout=session, rebalance_timeout=session, **joining)
        client.request(20, 3, topic_names=["orders"])
        assert sidecar.terminate() == 0
        events = {event.pop("event"): event for event in map(json.loads, sidecar.log().splitlines())}
    created = events["topic_created"]
    assert (created["topic"], created["partitions"]) == ("orders", 2)
    assert (events["topic_grown"]["partitions"], events["topic_grown"]["before"]) == (3, 2)
    assert events["topic_altered"]["changes"] == "retention.ms=5000"
    assert events["topic_deleted"]["id"] == created["id"]
    rebalanced = events["group_rebalanced"]
    assert (rebalanced["group"], rebalanced["generation"], rebalanced["members"]) == ("readers", 1, 1)
