"""The metadata store on etcd.

Invariants:
* Every key stands behind the namespace, and nothing outside it is read or changed.
* A lease whose answer was lost, or is late, is granted again; the lost one has no keys and ends by itself.
* An answer whose revision is below that of an earlier answer means that etcd lost something: MetadataDamaged.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Final

from logstore.base.client_tls import ClientTls
from logstore.base.events import Report
from logstore.base.metadata.errors import InvalidMetadataCall, LeaseEnded, MetadataRefused, MetadataUnavailable
from logstore.base.metadata.etcd.messages import (
    NOT_FOUND,
    BadAnswer,
    EtcdError,
    Json,
    conflict_entries,
    entries_of,
    get_request,
    header_of,
    number,
    range_request,
    ranges_of,
    reads_request,
    transaction_request,
)
from logstore.base.metadata.etcd.settings import EtcdSettings
from logstore.base.metadata.etcd.transport import EtcdTransport, open_transport
from logstore.base.metadata.etcd.watching import RANGE, EtcdWatch
from logstore.base.metadata.interface import (
    MAX_PAGE_ENTRIES,
    Committed,
    ConditionFailed,
    Lease,
    MetadataStatistics,
    Page,
    Put,
    Reading,
    Transaction,
    WantedPage,
    Watch,
    check_key,
    check_lease_time,
    check_page,
    check_pages,
    check_prefix,
    check_transaction,
    end_of_prefix,
)
from logstore.base.metadata.state import behind

TRANSACTION: Final = "kv/txn"


@asynccontextmanager
async def open_etcd(settings: EtcdSettings, random: Random, report: Report) -> "AsyncIterator[EtcdMetadataStore]":
    """The store at these endpoints; `random` spreads retries. Nothing is sent before a first call. Raises TlsError."""
    async with open_transport(settings, random, report) as transport:
        yield EtcdMetadataStore(transport)


class EtcdMetadataStore:
    """See MetadataStore."""

    def __init__(self, transport: EtcdTransport) -> None:
        self._transport = transport
        self._namespace = transport.settings.namespace
        self._revision = 0

    @property
    def statistics(self) -> MetadataStatistics:
        """See MetadataStore."""
        return self._transport.statistics

    @property
    def tls(self) -> ClientTls | None:
        """The files of new connections, which somebody may follow; None: there are none."""
        return self._transport.tls

    async def wait_failure(self) -> None:
        """Wait for the next call that an endpoint does not answer."""
        await self._transport.wait_failure()

    async def get(self, key: str) -> Reading:
        """See MetadataStore."""
        check_key(key)
        answer, revision = await self._read(RANGE, get_request(self._namespace + key))
        with _readable():
            entries = entries_of(self._namespace, answer)
        return Reading(entries[0] if entries else None, revision)

    async def page(
        self, prefix: str, *, after: str = "", limit: int = MAX_PAGE_ENTRIES, newer_than: int = 0, beside: str = ""
    ) -> Page:
        """See MetadataStore."""
        if beside:
            return (await self.pages((WantedPage(prefix, after, limit, newer_than, beside),)))[0]
        check_page(prefix, after, limit, newer_than)
        answer, revision = await self._read(RANGE, self._range(WantedPage(prefix, after, limit, newer_than)))
        with _readable():
            return Page(entries_of(self._namespace, answer), answer.get("more") is True, revision)

    async def pages(self, wanted: Sequence[WantedPage]) -> tuple[Page, ...]:
        """See MetadataStore."""
        check_pages(wanted)
        ranges: list[Json] = []
        for page in wanted:
            ranges += [self._range(page), get_request(self._namespace + page.beside)][: 2 if page.beside else 1]
        answer, revision = await self._read(TRANSACTION, reads_request(*ranges))
        with _readable():
            found = iter(ranges_of(answer, len(ranges)))
            return tuple([self._page(page, found, revision) for page in wanted])

    async def commit(self, transaction: Transaction) -> Committed | ConditionFailed:
        """See MetadataStore."""
        check_transaction(transaction)
        self.statistics.transactions += 1
        body = transaction_request(self._namespace, transaction)
        try:
            answer, revision = await self._ask(TRANSACTION, body, repeatable=not transaction.changes)
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise MetadataUnavailable(f"etcd refuses a transaction: {error.message}") from error
            raise await self._ended_lease(transaction, error) from error
        if answer.get("succeeded") is True:
            return Committed(revision)
        self.statistics.conflicts += 1
        with _readable():
            return ConditionFailed(conflict_entries(self._namespace, answer), revision)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Watch]:
        """See MetadataStore."""
        check_prefix(prefix)
        watch = EtcdWatch(self._transport, prefix, after_revision)
        try:
            yield watch
        finally:
            await watch.close()

    async def grant_lease(self, ttl_s: int) -> Lease:
        """See MetadataStore."""
        check_lease_time(ttl_s)
        try:
            answer = await self._transport.first_about_lease("lease/grant", {"TTL": str(ttl_s)})
        except EtcdError as error:
            raise MetadataUnavailable(f"etcd refuses a lease: {error.message}") from error
        with _readable():
            return Lease(number(answer, "ID"), number(answer, "TTL"))

    async def keep_alive(self, lease_id: int) -> Lease:
        """See MetadataStore."""
        try:
            answer = await self._transport.keep_alive({"ID": str(lease_id)})
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise MetadataUnavailable(f"etcd refuses to keep a lease alive: {error.message}") from error
            raise LeaseEnded(lease_id) from error
        with _readable():
            ttl_s = number(answer, "TTL")
        if ttl_s <= 0:
            raise LeaseEnded(lease_id)
        return Lease(lease_id, ttl_s)

    async def revoke_lease(self, lease_id: int) -> None:
        """See MetadataStore."""
        try:
            await self._transport.call_about_lease("lease/revoke", {"ID": str(lease_id)})
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise MetadataUnavailable(f"etcd refuses to end a lease: {error.message}") from error

    async def compact(self, revision: int) -> None:
        """See MetadataStore."""
        try:
            await self._transport.call("kv/compaction", {"revision": str(revision)})
        except EtcdError as error:
            if "has been compacted" in error.message:
                return
            raise InvalidMetadataCall(f"compact up to revision {revision}: {error.message}") from error

    # ---- details

    def _range(self, page: WantedPage) -> Json:
        begin = self._namespace + max(page.prefix, page.after + "\0" if page.after else "")
        return range_request(begin, end_of_prefix(self._namespace + page.prefix), page.limit, page.newer_than)

    def _page(self, wanted: WantedPage, found: Iterator[Json], revision: int) -> Page:
        """A page from the next one or two ranges that were found."""
        answer = next(found)
        beside = entries_of(self._namespace, next(found)) if wanted.beside else ()
        more = answer.get("more") is True
        return Page(entries_of(self._namespace, answer), more, revision, beside[0] if beside else None)

    async def _read(self, path: str, body: Json) -> tuple[Json, int]:
        """The answer to a call that only reads. Raises what the transport's `call` raises, but no EtcdError: no etcd
        says of a read what another try does not mend.
        """
        try:
            return await self._ask(path, body)
        except EtcdError as error:
            raise MetadataRefused(
                f"etcd refuses a read: {error.message}; etcd-endpoints must name members of an etcd 3.4 or newer"
            ) from error

    async def _ask(self, path: str, body: Json, *, repeatable: bool = True) -> tuple[Json, int]:
        """The answer of a majority, and its revision. Raises EtcdError and what the transport's `call` raises."""
        seen = self._revision
        answer = await self._transport.call(path, body, repeatable=repeatable)
        revision = header_of(answer).revision  # the transport has read the header already
        if revision < seen:
            raise behind(seen, revision)
        self._revision = max(self._revision, revision)
        return answer, revision

    async def _ended_lease(self, transaction: Transaction, error: EtcdError) -> LeaseEnded | MetadataUnavailable:
        """Which lease of a refused transaction has ended: etcd does not say."""
        for lease_id in dict.fromkeys(put.lease_id for put in transaction.changes if isinstance(put, Put)):
            if lease_id:
                answer = await self._transport.call("lease/timetolive", {"ID": str(lease_id)})
                with _readable():
                    if number(answer, "TTL") < 0:
                        return LeaseEnded(lease_id)
        return MetadataUnavailable(f"etcd refuses a transaction: {error.message}")


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except BadAnswer as error:
        raise MetadataUnavailable(f"an answer of etcd cannot be read: {error}") from error
