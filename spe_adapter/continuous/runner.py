"""A runner: a loop with its connections to a sidecar, the checks of the topics, and a way to stop it.

Invariants:
* Every start is an incarnation of its own and fences the ones before it, so that of two runners of the same partition
  the older one ends with FencedIncarnation.
* A runner that is killed at any moment costs time, never results. `stop` commits the open epoch first.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from logstore.base.addresses import Address
from logstore.client.blocking import Client, TopicPartition, parse_addresses
from logstore.client.errors import UNKNOWN_TOPIC_OR_PARTITION, SidecarRefused
from logstore.client.network import Network
from logstore.client.security import PLAINTEXT, ClientSecurity
from logstore.errors import CairnError, TopicExists
from spe_adapter.cec.policy import Policy, bounded
from spe_adapter.checkpoint.names import Unit
from spe_adapter.checkpoint.settings import CheckpointSettings
from spe_adapter.continuous.checkpoints import RunnerCheckpoints
from spe_adapter.continuous.client_port import CLIENT_ID, ClientPort
from spe_adapter.continuous.core import Core, FragmentInstance
from spe_adapter.continuous.errors import FragmentRefused
from spe_adapter.continuous.fragment import CheckedFragment, EpochLimits, Fragment, plan
from spe_adapter.continuous.loop import Event, Loop, Observe, RecoveryInput
from spe_adapter.continuous.registration import Needed, RunnerRegistration
from spe_adapter.epochs.client import incarnation_number
from spe_adapter.epochs.retention import (
    KEEP_ALL,
    NEW_TOPIC,
    STATE_HISTORIES,
    EpochOffsets,
    HeldStreams,
    StateHistory,
    how_lost,
    own_trimming,
)
from spe_adapter.errors import StateCleaned, StateTrimmed
from spe_adapter.host import Host, ThisHost, new_seed

READER_PREFIX: Final = "continuous/"
"""The prefix of the name under which the runner of a partition is registered as a reader."""
LIMIT_S: Final = 60.0
"""How long a runner repeats a request to a sidecar that does not answer."""


@dataclass(frozen=True)
class Options:
    """How a fragment runs.

    `servers` are the sidecar's addresses, as HOST:PORT with commas. `policy` makes the policy of one partition; the
    default bounds what a recovery reads and replays. `limits` are those of an epoch. `limit_s` is the time in seconds
    for which a request to an absent sidecar is repeated.
    """

    servers: str
    policy: Callable[[], Policy] = bounded
    limits: EpochLimits = field(default_factory=EpochLimits)
    limit_s: float = LIMIT_S
    checkpoints: CheckpointSettings | None = None
    """The place and the time of checkpoints of the state; None: only the log has the state."""
    register: bool = True
    """Whether sources and target keep the records that a recovery reads, whatever their retention (`cairn readers`)."""
    state_history: StateHistory = "all"
    """The records of state that the target keeps: "all", as long as results, or those that a "recovery" needs."""
    security: ClientSecurity = PLAINTEXT
    """TLS and the login of all connections to the sidecar."""

    def client(self, host: Host) -> Client:
        """A client of the sidecar. Raises InvalidConfig."""
        return Client(
            parse_addresses(self.servers),
            host.network,
            limit_s=self.limit_s,
            client_id=CLIENT_ID,
            security=self.security,
        )


def unobserved(event: Event) -> None:
    """Ignore an event."""
    del event


class Runner:
    """Processes one partition of a fragment: `run` works until `stop` is called or an error occurs.

    `observe` is called with an event for each recovery and each committed epoch, on the thread of `run`. Raises the
    errors of `Loop` and `ClientPort`.
    """

    def __init__(
        self,
        fragment: Fragment,
        partition: int,
        options: Options,
        *,
        observe: Observe = unobserved,
        host: Host | None = None,
    ) -> None:
        self._fragment = fragment
        self._partition = partition
        self._options = options
        self._observe = observe
        self._stopping = threading.Event()
        self._host: Host = _Interruptible(host or ThisHost(), self._stopping)
        self._loop: Loop | None = None

    def stop(self) -> None:
        """Make `run` commit the open epoch and return. Any thread or a signal handler may call it."""
        self._stopping.set()

    def needed_offsets(self) -> dict[str, int]:
        """For each source topic, the first offset of the partition that a recovery would read; earlier records may be
        trimmed. Empty until recovery has finished.
        """
        return {} if self._loop is None else self._loop.needed_offsets()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Recover, then work until `stop` is called or `until` returns True. `until` is called after each step.

        A stop while the sidecar does not answer returns at once, and leaves the open epoch to the next runner.
        """
        try:
            self._run(until)
        except _Stopped:
            return

    def _run(self, until: Callable[[], bool] | None) -> None:
        checked = plan(self._fragment)
        options = self._options
        partitions = prepare(self._fragment, options, self._host)
        if not 0 <= self._partition < partitions:
            raise FragmentRefused(
                f"query {self._fragment.query!r}: there is no partition {self._partition} of {partitions}"
            )
        incarnation = self._host.new_token()
        limits = options.limits
        with ClientPort(
            lambda: options.client(self._host), self._fragment, self._partition, incarnation, self._host,
            fetch_bytes=limits.fetch_bytes,
        ) as port:  # fmt: skip
            instance = FragmentInstance(self._partition, partitions, incarnation)
            self._work(checked, instance, port, until)

    def _work(
        self, checked: CheckedFragment, instance: FragmentInstance, port: ClientPort, until: Callable[[], bool] | None
    ) -> None:
        limits = self._options.limits
        settings = self._options.checkpoints if self._fragment.checkpoints else None
        core = Core(
            checked, instance, self._options.policy(), port.monotonic_ms, limits.state_bytes, new_seed(),
            is_paged=settings is not None,
        )  # fmt: skip
        with ExitStack() as stack:
            checkpoints = None
            if settings is not None:
                unit = Unit(self._fragment.query, self._partition)
                checkpoints = stack.enter_context(
                    closing(RunnerCheckpoints(unit, settings, core.freeze, self._host.network))
                )
            registration = self._registration(stack, lambda: loop.needed, port)

            def observe(event: Event) -> None:
                if registration is not None:
                    registration.note(event)
                self._observe(event)

            loop = Loop(core, checked, port, limits, observe, checkpoints)
            self._recover(loop)
            self._loop = loop
            while not self._stopping.is_set() and not (until is not None and until()):
                loop.step()
                if registration is not None:
                    registration.keep_alive()
            loop.finish()
            if registration is not None:
                registration.acknowledge()

    def _recover(self, loop: Loop) -> None:
        """Recover; a target that was trimmed too far is said with what would have kept it."""
        try:
            loop.recover()
        except StateCleaned:
            raise
        except StateTrimmed as error:
            fragment, options = self._fragment, self._options
            with options.client(self._host) as client:
                why = how_lost(client, reader_name(fragment, self._partition), self._target())
            raise StateTrimmed(f"{error}. {why}") from error

    def _target(self) -> TopicPartition:
        return TopicPartition(self._fragment.topic, self._partition)

    def _registration(
        self, stack: ExitStack, needed: Callable[[], RecoveryInput], port: ClientPort
    ) -> RunnerRegistration | None:
        """The partition's registration as a reader of sources and target; None if a recovery would not read them."""
        options, fragment = self._options, self._fragment
        if not options.register or not fragment.checkpoints:
            return None
        client = stack.enter_context(options.client(self._host))
        topics = [source.topic for source in fragment.sources]
        streams = [TopicPartition(topic, self._partition) for topic in topics]
        query = fragment.name_in(self._partition)
        cleaned_query = query if options.state_history == "recovery" else ""
        return RunnerRegistration(
            client,
            HeldStreams(reader_name(fragment, self._partition), cleaned_query),
            lambda: Needed(dict(zip(streams, needed().offsets, strict=True)), needed().target_epoch),
            EpochOffsets(self._target(), query),
            port.monotonic_ms,
            partial(incarnation_number, client, query, port.incarnation),
        )


def reader_name(fragment: Fragment, partition: int) -> str:
    """The name under which the runner of a partition is registered as a reader."""
    return f"{READER_PREFIX}{fragment.name_in(partition)}"


class _Stopped(CairnError):
    """The runner was stopped while it waited for a sidecar."""


class _Interruptible:
    """A host, and its network, whose `sleep` ends when the runner is stopped."""

    def __init__(self, host: Host, stopping: threading.Event) -> None:
        self._host = host
        self._stopping = stopping
        self.network: Network = self

    def wall_ms(self) -> int:
        """See Host."""
        return self._host.wall_ms()

    def new_token(self) -> str:
        """See Host."""
        return self._host.new_token()

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """See Network."""
        return self._host.network.connect(address, timeout_s)

    def monotonic_s(self) -> float:
        """See Network."""
        return self._host.network.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """See Network. Raises _Stopped."""
        if self._stopping.wait(seconds):
            raise _Stopped("stopped while waiting for a sidecar")


def prepare(fragment: Fragment, options: Options, host: Host) -> int:
    """Check the topics, and create the target if it is missing; the number of partitions.

    Raises FragmentRefused if the numbers of partitions differ, or if the target has retention and the runner does not
    register as its reader; and the client's errors.
    """
    with options.client(host) as client:
        counts = {source.topic: client.partitions(source.topic) for source in fragment.sources}
        wanted = counts[fragment.sources[0].topic]
        try:
            counts[fragment.topic] = client.partitions(fragment.topic)
        except SidecarRefused as error:
            if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
            _create(client, fragment.topic, wanted, NEW_TOPIC if options.register else KEEP_ALL)
            counts[fragment.topic] = wanted
        if options.state_history not in STATE_HISTORIES:
            raise FragmentRefused(f"state_history is {options.state_history!r}; allowed: {', '.join(STATE_HISTORIES)}")
        if options.state_history == "recovery" and not (options.register and fragment.checkpoints):
            raise FragmentRefused(
                f"query {fragment.query!r}: state_history='recovery' needs a registered reader (register=True) and "
                "state in the log (checkpoints=True); the sidecar learns from it which state a recovery needs"
            )
        if not fragment.allow_trimming and not options.register:
            _refuse_trimming(client, fragment)
    if set(counts.values()) != {wanted}:
        found = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise FragmentRefused(
            f"query {fragment.query!r}: sources and target need the same number of partitions, as partition p is "
            f"processed from p to p; {found}"
        )
    return wanted


def _create(client: Client, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
    """Create the target; the runner of another partition may create it at the same time."""
    with contextlib.suppress(TopicExists):
        client.create_topic(topic, partitions, settings)


def _refuse_trimming(client: Client, fragment: Fragment) -> None:
    """Refuse a target with retention that nobody holds: it has the state, and could lose that of open windows."""
    trims = own_trimming(client.topic_configs(fragment.topic))
    if trims and fragment.checkpoints:
        raise FragmentRefused(
            f"query {fragment.query!r}: topic {fragment.topic!r} has retention ({trims}), which can remove the state "
            "of open windows, as the runner is not a registered reader. Set these to -1, register the runner "
            "(register=True), or set allow_trimming=True if no window stays open that long"
        )
