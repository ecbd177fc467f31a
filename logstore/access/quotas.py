"""Quotas: how many bytes a second a user or a client may send and take, and for how long one that takes more waits.

Invariants:
* A quota belongs to an entity: a user, a client id, or both; a missing name is the default of its kind. Of all quotas
  that match, the most specific decides (`_precedence`). All connections that the same quota decides for, by the same
  user and client id as far as the entity names them, share one rate.
* A rate is the bytes of the last WINDOWS windows of WINDOW_MS over their time, as in Kafka. Who exceeds it waits until
  the rate would be at the quota again, but at most MAX_THROTTLE_MS.
* Times come in as arguments, in milliseconds of a clock that never goes back. Without quotas nothing is counted.

Sources: KIP-13, KIP-55 (users and client ids), KIP-546; Kafka's Rate and QuotaUtils.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

WINDOWS: Final = 11
"""Kafka's quota.window.num."""
WINDOW_MS: Final = 1_000
"""Kafka's quota.window.size.seconds."""
MAX_THROTTLE_MS: Final = 20_000
"""Less than the 30 s after which clients give up a request that is not answered."""
MAX_RATES: Final = 10_000
"""Rates in memory, at some 500 bytes each; the one that was unused for the longest gives way."""
MAX_RATE_CHARACTERS: Final = 100
"""Client ids under a default quota that begin with the same so many characters share a rate: clients choose their ids,
of up to 32 KiB each."""
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
KEYS: Final = (PRODUCER, CONSUMER)
"""The quotas that are enforced: bytes a second in, and out."""


class Default:
    """In an entity: everybody of this kind whose name has no quota of its own. There is one such object."""

    __slots__ = ()


DEFAULT: Final = Default()
Name = str | Default


class Entity(NamedTuple):
    """Whom a quota is for: a user, a client id, or both (None: the entity does not say)."""

    user: Name | None = None
    client_id: Name | None = None


def _precedence(user: str, client_id: str) -> Iterator[Entity]:
    for user_name in (user, DEFAULT):
        for client_name in (client_id, DEFAULT, None):
            yield Entity(user_name, client_name)
    yield Entity(None, client_id)
    yield Entity(None, DEFAULT)


class Rate:
    """Bytes in the last windows."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[list[int]] = deque()
        """Start of the window in ms, bytes; oldest first."""
        self._total = 0

    def add(self, amount: int, now_ms: int) -> None:
        """Count bytes."""
        if not self._samples or now_ms - self._samples[-1][0] >= WINDOW_MS:
            self._samples.append([now_ms, 0])
        self._samples[-1][1] += amount
        self._total += amount

    def throttle_ms(self, bytes_per_s: float, now_ms: int) -> int:
        """How long to wait until the rate is at the quota again; 0: it is not above."""
        while self._samples and now_ms - self._samples[0][0] >= WINDOWS * WINDOW_MS:
            self._total -= self._samples.popleft()[1]
        if not self._samples:
            return 0
        # As in Kafka: at least all windows but the current one count, so that a first burst is no high rate.
        elapsed_ms = now_ms - self._samples[0][0]
        full_windows = elapsed_ms // WINDOW_MS
        span_ms = elapsed_ms + max(0, WINDOWS - 1 - full_windows) * WINDOW_MS
        excess_bytes = self._total - bytes_per_s * span_ms / 1000
        if excess_bytes <= 0:
            return 0
        return min(MAX_THROTTLE_MS, round(excess_bytes / bytes_per_s * 1000))


class Quotas:
    """All quotas, and the rates of those that they decide for."""

    def __init__(self, quotas: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        """`quotas`: for each entity, bytes a second by PRODUCER or CONSUMER."""
        self._quotas: dict[Entity, dict[str, float]] = {
            entity: dict(values) for entity, values in (quotas or {}).items() if values
        }
        self._rates: OrderedDict[tuple[str, Entity], Rate] = OrderedDict()

    @property
    def is_active(self) -> bool:
        """Whether there is any quota."""
        return bool(self._quotas)

    def __len__(self) -> int:
        return len(self._quotas)

    def items(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """All entities with their quotas."""
        return iter(list(self._quotas.items()))

    def of(self, entity: Entity) -> Mapping[str, float]:
        """The quotas of exactly this entity."""
        return self._quotas.get(entity, {})

    def set(self, entity: Entity, values: Mapping[str, float]) -> None:
        """Replace the quotas of an entity; an empty mapping removes them."""
        if values:
            self._quotas[entity] = dict(values)
        else:
            self._quotas.pop(entity, None)

    def count(self, key: str, user: str, client_id: str, amount: int, now_ms: int) -> int:
        """Count bytes of a request or an answer; returns for how many ms the connection has to wait."""
        for entity, bytes_per_s in self._deciding(key, user, client_id):
            rate = self._rate(key, _sharing(entity, user, client_id))
            rate.add(amount, now_ms)
            return rate.throttle_ms(bytes_per_s, now_ms)
        return 0

    def throttle_ms(self, key: str, user: str, client_id: str, now_ms: int) -> int:
        """For how many ms a connection that asks now has to wait, for what it and all others that share its rate have
        sent or taken before.
        """
        for entity, bytes_per_s in self._deciding(key, user, client_id):
            rate = self._rates.get((key, _sharing(entity, user, client_id)))
            return 0 if rate is None else rate.throttle_ms(bytes_per_s, now_ms)
        return 0

    def _deciding(self, key: str, user: str, client_id: str) -> Iterator[tuple[Entity, float]]:
        """The quotas that match, with their bytes a second, the one that decides first."""
        for entity in _precedence(user, client_id):
            bytes_per_s = self._quotas.get(entity, {}).get(key)
            if bytes_per_s is not None:
                yield entity, bytes_per_s

    def _rate(self, key: str, sharing: Entity) -> Rate:
        place = (key, sharing)
        rate = self._rates.get(place)
        if rate is None:
            if len(self._rates) >= MAX_RATES:
                self._rates.popitem(last=False)
            rate = self._rates[place] = Rate()
        self._rates.move_to_end(place)
        return rate


def _sharing(entity: Entity, user: str, client_id: str) -> Entity:
    """Who shares a rate: a default quota gives each name a rate of its own."""
    own_id = client_id[:MAX_RATE_CHARACTERS] if entity.client_id is DEFAULT else entity.client_id
    return Entity(None if entity.user is None else user, own_id)


def user_of(principal: str) -> str:
    """The user's name in a principal."""
    return principal.partition(":")[2]
