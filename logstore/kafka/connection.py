"""The connection of a client: reads frames, and sends their answers in order.

Produce requests are pipelined: the next request is read and appended while earlier ones wait for their sync. Every
other request waits until all earlier answers are sent, and the requests after it wait for its answer, as in Kafka.

Invariants:
* Answers leave in the order of their requests (`logstore.kafka.answers`).
* Bytes of requests and answers are bounded, per connection and in total (`logstore.kafka.budgets`);
  `logstore.kafka.frames` bounds incoming frames. The sidecar stops reading from a client that does not read its
  answers, without an effect on other clients; a client that takes nothing for `idle_s` is disconnected.
* A request that only waits (a fetch for records, a join for members) counts against its own connection, not against the
  total.
* A client whose quota is used up gets its answer with the time to wait; its next request is read after that time.
  Other connections under the same quota wait as well, so a new connection does not evade a quota: a request with data
  waits before it is served, and a long request before it is received.
* A frame above the limit, a request that cannot be decoded, an unknown API key or a bug in a handler ends this
  connection, and no other.
* If the sidecar ends a connection whose client has only answers to GREETING_KEYS, as in a stop or after `idle_s`, it
  resets the connection. Clients interpret a reset correctly; some take a plain end for a listener with TLS.
* Where a login is required, only requests of the login are served before it (`logstore.kafka.security.login`).
* Without TLS, the task of `logstore.base.readiness`, which serves all connections, begins short requests of the common
  form and fetches that were read ahead, while the connection's own task waits for data. The own task does everything
  else.
* `ConnectionState` is the state of the connection. Every change is in TRANSITIONS and is made by the connection's own
  task. Other tasks only cancel, and leave the event that explains the cancellation.
"""

import enum
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Final

import trio

from logstore.access.quotas import user_of
from logstore.base.connected_socket import ConnectedSocket, TooSlow
from logstore.base.states import following
from logstore.errors import CairnError, MalformedRequest
from logstore.events import CONNECTION_CLOSED, REQUEST_CRASHED
from logstore.format.epoch_api import SCAN, STAGE
from logstore.interfaces import Buffer
from logstore.kafka import codec, fetch, produce, ready_fetch, single_batch
from logstore.kafka.answers import SLOT_BYTES, AnswerLine, AnswerSlot
from logstore.kafka.api_types import ApiHandlers, Broker, Caller
from logstore.kafka.budgets import AnswerBudget
from logstore.kafka.frames import SMALL_BYTES, Arrivals, ClosedError, Deadlines, FrameReader
from logstore.kafka.framing import Reader
from logstore.kafka.leaders import Leaders
from logstore.kafka.pace import STEPS, Pace, collecting
from logstore.kafka.request_kinds import GREETING_KEYS, GROUP_KEYS, LONG_ANSWER_KEYS, QUOTAS, WAITING_KEYS
from logstore.kafka.rights import table
from logstore.kafka.rights.data import fetch_allowed, produce_allowed
from logstore.kafka.security import login as login_requests
from logstore.kafka.security.login import Login, LoginState
from logstore.kafka.versions import api_versions_body, served_versions

SUBJECTS_ROOM = "logstore.kafka.security.subjects"
"""Loaded only where clients have certificates."""
GATHERED_PIECES = 8
"""Of up to SMALL_BYTES: so much is received from one client, who has several requests in flight, before others run."""
GATHERED_REQUESTS = 64
"""Of those that were begun before: more are not gathered with them, because to begin many short ones takes long."""
LINGER_BYTES = 16 * 1024
LINGER_S = 1.0
"""How long a client may go on sending after the last answer; closing earlier could destroy that answer in transit."""
MAX_WAITING_BYTES = 64 << 20
"""Limit for waiting group requests of all connections: twice `GroupSettings.max_bytes`. One more is disconnected."""


class ConnectionState(enum.Enum):
    """Where a connection is in its life."""

    SERVING = "serving"
    """Requests are read and answered."""
    DRAINING = "draining"
    """No more requests are read; earlier ones are answered."""
    HALF_CLOSED = "half closed"
    """The client sends no more; its requests are answered."""
    LINGERING = "lingering"
    """Every answer is sent; what the client still sends is thrown away, for LINGER_S seconds at most."""
    ENDED = "ended"
    """The socket is closed."""


class ConnectionEvent(enum.Enum):
    """What changes the state of a connection."""

    CLIENT_ENDED = "client ended its side"
    REFUSED = "request that cannot be served"
    TIMED_OUT = "no whole request in time"
    FRAME_GIVEN_UP = "frame given up"
    STOPPED = "sidecar stops"
    ANSWERED = "all answers sent"
    LINGERED = "client ended or took too long"
    CUT = "connection cut"


TRANSITIONS: Final[Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState]] = {
    (ConnectionState.SERVING, ConnectionEvent.CLIENT_ENDED): ConnectionState.HALF_CLOSED,
    (ConnectionState.SERVING, ConnectionEvent.REFUSED): ConnectionState.DRAINING,
    (ConnectionState.SERVING, ConnectionEvent.TIMED_OUT): ConnectionState.DRAINING,
    (ConnectionState.SERVING, ConnectionEvent.FRAME_GIVEN_UP): ConnectionState.DRAINING,
    (ConnectionState.SERVING, ConnectionEvent.STOPPED): ConnectionState.DRAINING,
    (ConnectionState.SERVING, ConnectionEvent.CUT): ConnectionState.ENDED,
    (ConnectionState.DRAINING, ConnectionEvent.ANSWERED): ConnectionState.LINGERING,
    (ConnectionState.DRAINING, ConnectionEvent.CUT): ConnectionState.ENDED,
    (ConnectionState.HALF_CLOSED, ConnectionEvent.ANSWERED): ConnectionState.ENDED,
    (ConnectionState.HALF_CLOSED, ConnectionEvent.CUT): ConnectionState.ENDED,
    (ConnectionState.LINGERING, ConnectionEvent.LINGERED): ConnectionState.ENDED,
    (ConnectionState.LINGERING, ConnectionEvent.CUT): ConnectionState.ENDED,
}
REASONS: Final[Mapping[ConnectionEvent, str]] = {
    ConnectionEvent.TIMED_OUT: "no whole request came in time",
    ConnectionEvent.FRAME_GIVEN_UP: (
        "its frame came slower than others while memory for requests was short (total-in-flight-bytes)"
    ),
}
"""What the operator is told of an event by which reading ends; a stop needs no report."""
PLACE_TAKEN: Final = "it was idle the longest, and gave way to a new connection (max-connections)"
ANSWERS_UNREAD: Final = "it did not read its answers while memory for them was short (total-answer-bytes)"


class ClientConnection:
    """Serves one client until it disconnects, breaks the protocol or is idle for too long."""

    def __init__(
        self,
        client: ConnectedSocket,
        broker: Broker,
        handlers: ApiHandlers,
        caller: Caller,
        arrivals: Arrivals,
        answers: AnswerBudget,
        on_request: Callable[[Callable[[], None]], None],
    ) -> None:
        """`on_request` is called with `give_way` for every request that arrives, before it is served."""
        self._client = client
        self._broker = broker
        self._since_s = trio.current_time()
        self._handlers = handlers
        self._caller = caller
        self._requests = arrivals.requests
        self._waiting = arrivals.waiting
        self._answers = answers
        self._on_request = on_request
        settings = broker.settings
        self._line = AnswerLine(
            client, broker.engine, arrivals.requests, answers, settings.idle_s, self._give_up_answer
        )
        self._life = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._state = ConnectionState.SERVING
        self._reading_ended_by = ConnectionEvent.TIMED_OUT
        """The event that a cancellation of `_receiving` stands for; its deadline is the client's."""
        self._why_cut = PLACE_TAKEN
        self._produced, self._fetched = handlers.meter.of(produce.KEY), handlers.meter.of(fetch.KEY)
        self._leaders: Leaders | None = None
        if broker.placement is not None:
            listener = caller.advertised_host, caller.advertised_port
            self._leaders = Leaders(broker.engine.store, broker.placement, *listener)
        self._muted_ms = 0
        """For how long no request is read after the current one: the client's quota is used up."""
        self._login: Login | None = None
        """The login under way; None once the client is admitted."""
        descriptor = client.descriptor
        self._watched = None if descriptor is None else arrivals.readiness.watch(descriptor)
        self._request: memoryview | None = None
        """What `_begin_arrived` has left to `_go_on`."""
        self._is_common = False
        """The last request was begun at once, and short: the next one likely is. Others need the connection's task, and
        would take two turns of the event loop."""
        self._is_received = self._was_deep = False
        self._is_first_of_burst = True
        self._pieces = self._begun = 0
        """Pieces received, and requests begun, since others ran."""
        deadlines = Deadlines(settings.handshake_s, settings.idle_s)
        limit = settings.max_frame_bytes
        self._frames = FrameReader(client, limit, deadlines, arrivals, self._receiving, self._give_up_frame)

    def require_login(self, login: Login) -> None:
        """Before `run`: serve nothing until the client has logged in."""
        self._login = login
        self._frames.limit_until_admitted(login_requests.MAX_FRAME_BYTES)

    def give_way(self) -> None:
        """End the connection at once, with requests unanswered: another client needs the slot."""
        self._cut(PLACE_TAKEN)

    def _give_up_frame(self) -> None:
        """Stop waiting for the incoming frame; earlier requests are still answered."""
        self._end_reading(ConnectionEvent.FRAME_GIVEN_UP)

    def _give_up_answer(self) -> None:
        self._cut(ANSWERS_UNREAD)

    def expire(self, now_s: float) -> None:
        """Answer the Produce requests whose time limit is over. Called again and again."""
        self._line.expire(now_s)

    def stop(self) -> None:
        """Take no more requests; appends under way are still answered, requests that only wait are not."""
        self._end_reading(ConnectionEvent.STOPPED)

    def owes_first_answer(self, since_s: float) -> bool:
        """Whether no request of the client was answered by which it does more than introduce itself, while it has
        connected behind a moment, or a request is worked on.
        """
        is_expected = self._since_s > since_s or self._line.is_working
        return is_expected and self._state is ConnectionState.SERVING and not self._line.has_served

    def _end_reading(self, event: ConnectionEvent) -> None:
        self._reading_ended_by = event
        self._receiving.cancel()

    def _cut(self, why: str) -> None:
        self._why_cut = why
        self._life.cancel()

    def move(self, event: ConnectionEvent) -> ConnectionState:
        """Make the transition in the table; returns the new state."""
        self._state = following(TRANSITIONS, self._state, event, "connection")
        return self._state

    async def run(self) -> None:
        """Serve; returns when the connection has ended."""
        try:
            with self._life:
                await self._serve()
            if self._life.cancelled_caught:
                self._report_close(self._why_cut)
        except* TooSlow as group:
            self._report_close(group.exceptions[0])
        except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass  # the client disconnected; the records that it had sent are appended all the same
        except* ClosedError as group:
            self._report_close(group.exceptions[0])
        except* Exception as group:  # noqa: BLE001  a bug here must not cost the other clients their connections
            trace = "".join(traceback.format_exception(group))
            self._broker.engine.store.report(REQUEST_CRASHED, client=self._caller.host, trace=trace)
        finally:
            self._broker.engine.kick()  # what was appended is written, however the connection has ended
            if self._state is not ConnectionState.ENDED:
                self.move(ConnectionEvent.CUT)
                if not self._line.has_served:
                    self._client.reset_at_close()
            self._line.close()
            if self._watched is not None:
                self._watched.close()
            self._client.close()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._line.send_answers)
            ended_by = await self._read()
            self.move(ended_by)
            self._line.end()
            self._broker.engine.kick()
        if (ended_by is ConnectionEvent.STOPPED or ended_by in REASONS) and not self._line.has_served:
            return  # and be cut
        if self.move(ConnectionEvent.ANSWERED) is ConnectionState.LINGERING:
            await self._linger()
            self.move(ConnectionEvent.LINGERED)

    async def _read(self) -> ConnectionEvent:
        """Read and start requests until no more are to be read; returns the event that ended this, and reports it."""
        with self._receiving:
            try:
                await self._receive()
            except (MalformedRequest, ClosedError) as error:
                self._report_close(error)
                return ConnectionEvent.CLIENT_ENDED if self._frames.is_ended else ConnectionEvent.REFUSED
        if not self._receiving.cancelled_caught:
            return ConnectionEvent.CLIENT_ENDED
        if self._reading_ended_by in REASONS:
            self._report_close(REASONS[self._reading_ended_by])
        return self._reading_ended_by

    def _report_close(self, why: object) -> None:
        self._broker.engine.store.report(CONNECTION_CLOSED, client=self._caller.host, why=str(why))

    async def _linger(self) -> None:
        self._client.end_sending()
        rest = memoryview(bytearray(LINGER_BYTES))
        with trio.move_on_after(LINGER_S):
            while await self._client.receive(rest):
                pass

    # ---- in

    async def _receive(self) -> None:
        await self._frames.shake_hands()
        certificate = self._client.certificate
        if certificate is not None:
            try:
                principal = import_module(SUBJECTS_ROOM).principal_of_certificate(certificate)
            except ValueError as error:
                raise ClosedError("the subject of the client's certificate cannot be read") from error
            self._caller = self._caller._replace(principal=principal)
        while True:
            if self._request is not None or self._lacks_room:
                await self._go_on()
            elif self._begin_arrived(has_checks=self._broker.has_checks or self._login is not None):
                self._broker.engine.kick()
                if not await self._wait_for_more():
                    return

    def _begin_arrived(self, *, has_checks: bool) -> bool:
        """Begin the requests that have arrived, as far as that takes no wait; those answers that are ready then leave
        together. False: `_go_on` has to be waited for first. `has_checks`: each request is looked at before.
        """
        while True:
            request = self._frames.next_nowait()
            if request is None:
                if self._receives_more():
                    continue
                self._line.flush_gathered()
                return True
            if self._is_first_of_burst:
                self._on_request(self.give_way)
                self._is_first_of_burst = False
            self._begun += 1
            if has_checks or not self._begin_at_once(request):
                self._request, self._is_common = request, False
                return False
            self._is_common = len(request) < SMALL_BYTES
            if self._lacks_room:
                return False

    def _begin_at_once(self, request: memoryview) -> bool:
        """Begin a request of a common form; False: it has another form, or may have to wait."""
        if single_batch.start(self._broker, self._line, self._produced, request, self._leaders):
            return True
        if self._frames.has_more:  # many fetches may be served without a wait: others run in between
            return False
        return ready_fetch.start(self._broker, self._line, self._fetched, request, self._answers)

    def _receives_more(self) -> bool:
        """Whether more has arrived while requests were begun: then they share a write, and a turn of the event loop."""
        is_deep = self._line.waiting > 1
        if is_deep or self._was_deep:
            has_time = self._pieces < GATHERED_PIECES and self._begun < GATHERED_REQUESTS
            if has_time and not self._broker.quotas.is_active and self._frames.receive_more():
                self._pieces += 1
                return True
        self._was_deep, self._pieces, self._begun = is_deep, 0, 0
        return False

    async def _go_on(self) -> None:
        """Do what requests need that wait for something."""
        request, self._request = self._request, None
        if request is not None and self._login is not None:
            await self._serve_login(self._login, request, codec.decode_header(request))
        elif request is not None:
            await self._begin(request)
        if self._muted_ms:
            await self._stay_muted()
        if self._lacks_room:
            await self._wait_for_room()

    @property
    def _lacks_room(self) -> bool:
        """Whether no request is to be begun now."""
        is_full = self._line.request_bytes > self._broker.settings.connection_in_flight_bytes
        return is_full or not self._requests.has_room

    async def _wait_for_more(self) -> bool:
        """Wait until more has arrived than was begun; False: the client has closed its side."""
        if self._broker.quotas.is_active and (key := self._frames.coming) is not None:
            await self._wait_for_quota(key, self._caller.client_id)
        watched = self._watched if self._is_common else None
        if watched is not None and self._begins_at_once and self._frames.await_more(trio.current_time()):
            self._is_received = False
            await watched.wait(self._begin_what_comes)
            if self._is_received:
                return True
        if self._watched is not None:
            self._watched.close()
        if not await self._frames.receive():
            return False
        self._line.gather()
        self._is_first_of_burst = True
        return True

    def _begin_what_comes(self, now_s: float) -> bool:
        """Data has come while the connection's task waits: receive it, and begin its requests. False: the task is
        needed for one of them, for a longer one that is coming, to wait for room, or to receive by itself.
        """
        self._is_received = self._begins_at_once and self._frames.receive_more()
        if not self._is_received:  # the end, or requests that are to be looked at first
            return False
        self._is_first_of_burst = True
        if not self._requests.has_room:  # others have taken it meanwhile
            return False
        self._line.gather()
        if self._begin_arrived(has_checks=False):
            return self._frames.await_more(now_s)
        self._line.flush_gathered()
        return False

    @property
    def _begins_at_once(self) -> bool:
        """Whether requests need no look before they are begun."""
        return self._login is None and not self._broker.has_checks

    async def _begin(self, request: memoryview) -> None:
        """Begin a request of any form."""
        header = codec.decode_header(request)
        # A longer request has waited before it was received.
        if self._broker.quotas.is_active and len(request) <= SMALL_BYTES:
            await self._wait_for_quota(header.api_key, header.client_id)
        if header.api_key == produce.KEY and produce.MIN_VERSION <= header.version <= produce.MAX_VERSION:
            await self._produce(request, header)
        else:
            await self._serve_alone(request, header)

    async def _serve_alone(self, request: memoryview, header: codec.RequestHeader) -> None:
        """Serve any request but Produce: after all earlier requests are answered, and before later ones are read."""
        since_s = self._broker.clock.monotonic_s()
        self._frames.pause()
        self._line.flush_gathered()
        if self._frames.has_more:  # many requests may be served without a wait, as from memory: others run in between
            await trio.lowlevel.checkpoint()
        if header.client_id != self._caller.client_id:
            self._caller = self._caller._replace(client_id=header.client_id)
        slot = AnswerSlot(header.correlation_id, len(request) + SLOT_BYTES, header.api_key not in WAITING_KEYS)
        slot.is_greeting = header.api_key in GREETING_KEYS
        self._line.push(slot)
        try:
            await self._line.wait_sent(slot.size_bytes)
            slot.body = await self._answer(request, header, slot)
            self._handlers.meter.of(header.api_key).add(self._broker.clock.monotonic_s() - since_s)
            self._line.mark_ready(slot)
        finally:
            if not slot.is_ready:
                self._line.drop(slot)

    def _count(self, header: codec.RequestHeader, size: int) -> int:
        """Count bytes for the caller's quota; returns for how many ms no request will be read."""
        if not self._broker.quotas.is_active:
            return 0
        user, now_ms = user_of(self._caller.principal), int(self._broker.clock.monotonic_s() * 1000)
        throttle_ms = self._broker.quotas.count(QUOTAS[header.api_key], user, header.client_id, size, now_ms)
        self._muted_ms = max(self._muted_ms, throttle_ms)
        return throttle_ms

    async def _wait_for_quota(self, api_key: int, client_id: str) -> None:
        """Wait while the quota of a request is used up; at most once for each request, and MAX_THROTTLE_MS."""
        if api_key in QUOTAS:
            user, now_ms = user_of(self._caller.principal), int(self._broker.clock.monotonic_s() * 1000)
            throttle_ms = self._broker.quotas.throttle_ms(QUOTAS[api_key], user, client_id, now_ms)
            if throttle_ms:
                self._let_others_run()
                await trio.sleep(throttle_ms / 1000)

    async def _stay_muted(self) -> None:
        """Read nothing until the caller's rate is at its quota again; answers go on."""
        muted_ms, self._muted_ms = self._muted_ms, 0
        self._let_others_run()
        await trio.sleep(muted_ms / 1000)

    async def _serve_login(self, login: Login, request: memoryview, header: codec.RequestHeader) -> None:
        """Serve a request of a login. Raises ClosedError for any other, and after a login that failed."""
        asks_versions = header.api_key == codec.API_VERSIONS_KEY and login.state is LoginState.STARTED
        if header.api_key not in login_requests.LOGIN_KEYS and not asks_versions:
            raise ClosedError(f"request {header.api_key} before the login is done")
        await self._serve_alone(request, header)
        if login.state is LoginState.FAILED:
            raise ClosedError("the login failed")
        if login.state is LoginState.DONE:
            self._login = None
            self._caller = self._caller._replace(principal=login.principal)
            self._frames.admit()

    async def _wait_for_room(self) -> None:
        """Wait until there is room for another request."""
        self._let_others_run()
        await self._line.wait_sent(self._broker.settings.connection_in_flight_bytes)
        await self._requests.wait_room()

    async def _produce(self, request: memoryview, header: codec.RequestHeader) -> None:
        since_s = self._broker.clock.monotonic_s()
        flexible = header.version >= produce.FIRST_FLEXIBLE
        decoded = produce.decode(request, _body_at(request, header, flexible=flexible), header.version)
        if self._broker.authorizer.is_active:
            decoded = produce_allowed(self._broker, decoded, self._caller)
        answer = produce.ProduceAnswer(decoded.version, decoded.acks, self._leaders, decoded.limit_ms, since_s)
        slot = AnswerSlot(header.correlation_id, len(request) + SLOT_BYTES, flexible_header=flexible, answer=answer)
        self._line.push(slot)
        is_appended = False
        try:
            await self._append(decoded, len(request), answer)
            is_appended = True
        finally:
            if not is_appended:  # the connection ends here; batches that are appended already stay
                self._line.drop(slot)
        answer.throttle_ms = self._count(header, len(request))
        answer.when_ready(partial(self._mark_produced, slot, answer))

    def _mark_produced(self, slot: AnswerSlot, answer: produce.ProduceAnswer) -> None:
        self._handlers.meter.of(produce.KEY).add(self._broker.clock.monotonic_s() - answer.since_s)
        if answer.early:
            self._line.mark_early(slot, answer.early)
        else:
            self._line.mark_ready(slot)

    async def _append(self, request: produce.ProduceRequest, frame_bytes: int, answer: produce.ProduceAnswer) -> None:
        if produce.needs_check_apart(self._broker, request):
            self._let_others_run()
            request = await produce.check_apart(self._broker, request)
        if request.partitions <= STEPS:
            produce.start(self._broker, request, frame_bytes, answer)
        else:
            self._let_others_run()
            pace = Pace()
            for _ in produce.steps(self._broker, request, frame_bytes, answer):
                await pace.step()

    def _let_others_run(self) -> None:
        """Before a long step: suspend the client's deadline, and start to write the batches appended so far."""
        self._frames.pause()
        self._line.flush_gathered()
        self._broker.engine.kick()

    async def _answer(self, request: memoryview, header: codec.RequestHeader, slot: AnswerSlot) -> list[Buffer]:
        """Handle any request but Produce; returns the body of its answer."""
        private = self._handlers.private.get(header.api_key)
        try:
            if private is not None:
                body, slot.reserved_bytes = await private.handle(request[header.body_at :], self._answers, self._caller)
                if header.api_key == STAGE:
                    self._count(header, len(request))
                elif header.api_key == SCAN:
                    self._count(header, _size(body))
                return body
            if header.api_key == codec.API_VERSIONS_KEY:
                return api_versions_body(self._handlers, header.version)
            if header.api_key == fetch.KEY and fetch.MIN_VERSION <= header.version <= fetch.MAX_VERSION:
                slot.flexible_header = header.version >= fetch.FIRST_FLEXIBLE
                at = _body_at(request, header, flexible=slot.flexible_header)
                decoded = await fetch.decode_large(request, at, header.version)
                if self._broker.authorizer.is_active:
                    decoded = fetch_allowed(self._broker, decoded, self._caller)
                body, slot.reserved_bytes = await fetch.handle(self._broker, decoded, self._answers, self._leaders)
                return fetch.throttled(body, self._count(header, _size(body)))
            with self._counted_waiting(len(request)) if header.api_key in GROUP_KEYS else nullcontext():
                return await self._answer_decoded(request, header, slot)
        except (MalformedRequest, ClosedError):
            raise
        except (CairnError, OSError) as error:
            raise ClosedError(f"request {header.api_key} failed: {error}") from error

    async def _answer_decoded(self, request: memoryview, header: codec.RequestHeader, slot: AnswerSlot) -> list[Buffer]:
        api = self._handlers.kafka.get(header.api_key)
        if api is None or not api.min_version <= header.version <= api.max_version:
            return self._refuse_version(header, slot)
        flexible = bool(codec.request_type(header.api_key, header.version).__flexible__)
        decoded = await codec.decode_large(request, header, _body_at(request, header, flexible=flexible))
        async with collecting() if header.api_key in LONG_ANSWER_KEYS else nullcontext():
            response = await (
                self._login.handle(decoded)
                if self._login is not None
                else table.answer(self._broker, api, decoded, self._caller)
            )
            slot.flexible_header = codec.has_flexible_response_header(response)
            return await codec.encode_large(response)

    def _refuse_version(self, header: codec.RequestHeader, slot: AnswerSlot) -> list[Buffer]:
        """UNSUPPORTED_VERSION in the nearest served version. Raises ClosedError if its response has no error code."""
        offered = {key: (lowest, highest) for key, lowest, highest in served_versions(self._handlers)}
        if header.api_key in offered:
            lowest, highest = offered[header.api_key]
            refusal = codec.refuse_version(header.api_key, min(max(header.version, lowest), highest))
            if refusal is not None:
                slot.flexible_header = codec.has_flexible_response_header(refusal)
                return codec.encode(refusal)
        raise ClosedError(f"request {header.api_key} version {header.version} is not served here")

    @contextmanager
    def _counted_waiting(self, size: int) -> Iterator[None]:
        """Wraps a request that may wait for a group: its frame counts in the budget of waiting requests meanwhile."""
        if not self._waiting.has_room:
            raise ClosedError("requests that wait for their groups hold too much memory")
        self._waiting.take(size)
        try:
            yield
        finally:
            self._waiting.give(size)


def _size(body: list[Buffer]) -> int:
    return sum(len(part) for part in body)


def _body_at(request: memoryview, header: codec.RequestHeader, *, flexible: bool) -> int:
    reader = Reader(request, header.body_at, flexible=flexible)
    reader.tags()
    return reader.at
