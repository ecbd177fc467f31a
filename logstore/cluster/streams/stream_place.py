"""Which stream a replicated one is."""

from typing import NamedTuple


class StreamPlace(NamedTuple):
    """Which stream: its topic's name and id, and its partition."""

    topic: str
    topic_id: str
    partition: int
    is_internal: bool = False
    cluster_id: str = ""

    @property
    def stream(self) -> str:
        """The name of the replicated stream."""
        return f"{self.topic_id}/{self.partition}"

    @property
    def in_tier(self) -> str:
        """What the keys of its objects in the tier start with."""
        return f"{self.cluster_id}/{self.topic}.{self.topic_id}/{self.partition}"
