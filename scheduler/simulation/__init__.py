"""A cluster to try plans on: disks and links as flows, max-min fair, deterministic by seed."""
