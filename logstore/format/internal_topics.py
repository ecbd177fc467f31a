"""The names of the topics that a cluster has of its own, as clients see them."""

from typing import Final

GROUPS: Final = "__cairn_groups"
"""Consumer groups and registered readers; made when somebody has something to keep there."""
EPOCHS: Final = "__cairn_epochs"
"""Epochs of queries."""
