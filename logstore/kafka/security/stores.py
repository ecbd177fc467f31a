"""What a sidecar knows of those who ask: the users who may log in, their rights and their quotas.

Invariant: all of it follows the same entries, of this host (`logstore.access.entries.LedgerEntries`) or of the cluster
(`logstore.cluster.streams.stored_access`); the classes in memory are the same for both.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from logstore.access.authorizer import Authorizer
from logstore.access.entries import AccessEntries
from logstore.access.ledger import AclStore
from logstore.access.quota_ledger import QuotaStore
from logstore.kafka.security.users import Users


def _never() -> bool:
    return False


class CallerStores(NamedTuple):
    """Access control lists, quotas and users; `is_damaged`: whether an entry of them cannot be read."""

    acls: AclStore
    quotas: QuotaStore
    users: Users
    is_damaged: Callable[[], bool] = _never

    @property
    def is_empty(self) -> bool:
        """Whether nobody has set anything."""
        return self.users.is_empty and not len(self.acls.index) and not len(self.quotas.quotas)

    def authorizer(self, super_users: Iterable[str]) -> Authorizer:
        """Decides by these lists, and by whether there are users."""
        return Authorizer(self.acls.index, super_users, lambda: not self.users.is_empty, self.is_damaged)


def open_stores(
    entries: AccessEntries,
    user_entries: AccessEntries,
    new_secret: Callable[[int], bytes],
    is_damaged: Callable[[], bool] = _never,
) -> CallerStores:
    """All stores over their entries. `new_secret` gives that many random bytes. Raises CorruptFile."""
    return CallerStores(AclStore(entries), QuotaStore(entries), Users(user_entries, new_secret), is_damaged)
