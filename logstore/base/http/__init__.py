"""A small HTTP/1.1 server on h11 and trio, for the coordinator and for the sidecar's monitoring. It knows neither."""
