"""Coordinators of a cluster that stand by for each other: who leads, and what the others answer."""
