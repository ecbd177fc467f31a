"""Where the clusters of tests run: on loopback, or in containers with `./run test processes --docker`."""

from logstore.testing.containers import ContainerNetwork
from logstore.testing.network import ClusterNetwork, Loopback, RelayedNetwork

_chosen: list[type[Loopback] | type[ContainerNetwork]] = [Loopback]


def choose_containers() -> None:
    """From now on."""
    _chosen[0] = ContainerNetwork


def new_network() -> ClusterNetwork:
    """A network of the kind that was chosen, for one cluster."""
    return _chosen[0]()


def new_faulty_network() -> ClusterNetwork:
    """A network of the kind that was chosen, in which a direction can be cut or slow."""
    return ContainerNetwork() if are_containers() else RelayedNetwork()


def are_containers() -> bool:
    """Whether containers were chosen."""
    return _chosen[0] is ContainerNetwork
