"""What who lacks a right is told: which right it is, and what is not known to them is shown as not known."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio
from kio.schema.errors import ErrorCode

from logstore.access.acls import Operation
from tests.access.world import BOB, allow, cluster, world
from tests.support.cli import Finished, cairn

ANONYMOUS = "User:ANONYMOUS"


async def test_a_refusal_names_the_right(tmp_path: Path) -> None:
    """Where an answer of Kafka's has a text, it says who may not do what; of a topic that is named by its id, not the
    name.
    """
    async with world(tmp_path, has_users=True) as here, here.client(BOB) as bob:
        topic_id = await here.create_topic("t")
        configs = await bob.kafka(32, 1, resources=[{"resource_type": 2, "resource_name": "t"}])
        assert configs.results[0].error_message == f"{BOB} may not DESCRIBE_CONFIGS topic 't'"
        users = await bob.kafka(50, 0, users=None)
        assert users.error_message == f"{BOB} may not DESCRIBE the cluster"
        long = "n" * 30_000
        named = {"name": long, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        created = await bob.kafka(19, 4, topics=[named], timeout_ms=1000, validate_only=False)
        assert created.topics[0].error_message == f"{BOB} may not CREATE topic {'n' * 249!r}"
        deleted = await bob.kafka(20, 6, topics=[{"name": None, "topic_id": topic_id}], timeout_ms=1000)
        assert deleted.responses[0].error_code is ErrorCode.topic_authorization_failed
        assert "'t'" not in deleted.responses[0].error_message


async def test_commands_name_the_right_and_what_is_not_known(tmp_path: Path) -> None:
    """`cairn topics` without Describe on the cluster shows no sizes, not sizes of 0; `describe` without that on
    the settings shows the rest, and names it; what has no text in Kafka's answer gets the right from the command.
    """
    async with world(tmp_path) as here:
        await here.create_topic("t")
        await here.create_topic("hidden")
        await here.allow(allow(ANONYMOUS, Operation.DESCRIBE, "t"))

        async def run(*words: str) -> Finished:
            return await trio.to_thread.run_sync(partial(cairn, *words, "--servers", f"127.0.0.1:{here.port}"))

        assert (await run("topics", "--json")).json == {"topics": [{"topic": "t", "partitions": 1, "bytes": None}]}
        assert (await run("topics")).out.splitlines()[1].split() == ["t", "1", "-"]
        described = (await run("topics", "describe", "t", "--json")).json
        assert (described["configs"], len(described["partitions"])) == (None, 1)
        lines = (await run("topics", "describe", "t")).out.splitlines()
        assert lines[0].split()[:2] == ["PARTITION", "EARLIEST"]
        assert lines[-1].startswith("the settings are not shown: that needs DescribeConfigs on the topic")
        refused = await run("topics", "describe", "hidden")
        assert "ask for an ACL that allows Describe on the topic, as Read and Write do" in refused.err
        await here.allow(allow(ANONYMOUS, Operation.DESCRIBE_CONFIGS, "t"))
        described = (await run("topics", "describe", "t", "--json")).json
        assert described["partitions"][0]["bytes"] is None
        assert described["configs"]["cleanup.policy"] == "delete"
        await here.allow(cluster(ANONYMOUS, Operation.DESCRIBE))
        assert (await run("topics", "--json")).json["topics"][0]["bytes"] == 0
