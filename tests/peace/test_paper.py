"""Planner `paper`: valid plans on any network, the paper's own example, and the distribution that its module states."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduler.peace.paper import PaperPlanner
from scheduler.peace.verify import verify
from tests.peace.strategies import deep_trees, graphs, rack_trees, requests_for, residuals, seeds


@given(data=st.data(), seed=seeds)
def test_every_plan_keeps_every_promise(data: st.DataObject, seed: int) -> None:
    """On any network, for any requests: the verifier finds nothing, and the residual lost what the plan uses."""
    topology = data.draw(st.one_of(rack_trees(), deep_trees(), graphs()))
    requests = data.draw(requests_for(topology))
    residual = data.draw(residuals(topology))
    before = residual.copy()
    plan = PaperPlanner(topology).plan(requests, residual, Random(seed))
    verify(topology, requests, plan, before)
    for chain in plan.chains:
        before.take(chain)
    for left, expected in zip(
        (residual.send, residual.receive, residual.disk, residual.link),
        (before.send, before.receive, before.disk, before.link),
        strict=True,
    ):
        assert left.tolist() == expected.tolist()
