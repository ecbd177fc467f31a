"""A log that was alone becomes a cluster's."""
