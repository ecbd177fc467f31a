"""A small HTTP/1.1 server on h11 and trio. It knows nothing of the coordinator."""
