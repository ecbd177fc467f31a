"""What hosts that ask for copy slots get from the coordinator that leads: members are hosts of its network.

Invariants:
* A member is the host of its name; else the host at its address, if that is one host's. Copies between members of which
  one is in no network, or which are the same host there, are not planned.
* Nothing is answered unless this host surely leads, before the plan is changed and after it.
"""

from collections.abc import Callable

from logstore.base.copy_slots import SlotAnswer, SlotAsk
from scheduler.coordinator.copy_slots import SlotCall
from scheduler.coordinator.errors import StoreError
from scheduler.coordinator.service import Coordinator


class SlotAnswers:
    """See the module. `leads`: whether this host surely leads; `sure_ms`: for how long another host surely cannot."""

    def __init__(self, coordinator: Coordinator, leads: Callable[[], bool], sure_ms: Callable[[], int]) -> None:
        self._coordinator = coordinator
        self._leads = leads
        self._sure_ms = sure_ms

    async def ask(self, ask: SlotAsk) -> SlotAnswer | None:
        """See GivesSlots."""
        coordinator = self._coordinator
        if not self._leads() or coordinator.failing is not None:
            return None
        host_of = self._hosts(ask)
        target = host_of(ask.target)
        planned = {name: host for name in ask.wanted if (host := host_of(name)) and host != target} if target else {}
        apart = [name for name in ask.wanted if name not in planned]
        needy = [(one, other) for source, aim in ask.needy if (one := host_of(source)) and (other := host_of(aim))]
        held = [host for name in ask.held if (host := host_of(name))]
        call = SlotCall(target, ask.life, ask.number, list(planned.values()), held, needy)
        try:
            unplanned = coordinator.copy_slots.ask(call)
            await coordinator.planned()
        except StoreError:
            return None
        if unplanned is None or not self._leads():
            return None
        told = coordinator.copy_slots.tell(call, self._sure_ms())
        slots = {name: told[host] for name, host in planned.items() if host in told}
        return SlotAnswer(slots, [*apart, *(name for name, host in planned.items() if host in unplanned)])

    def _hosts(self, ask: SlotAsk) -> Callable[[str], str]:
        """From a member's name to its host in the network; "": there is none."""
        hosts = self._coordinator.hosts
        by_address = hosts.names_by_address()

        def host_of(member: str) -> str:
            for name in (member, by_address(ask.addresses.get(member, member))):
                if hosts.is_known(name):
                    return name
            return ""

        return host_of
