"""What a sidecar shows of itself over HTTP: metrics, health, a status page. It only looks; it changes nothing.

`sampler` walks the sidecar's parts and takes a snapshot; `metrics` has the table of all metrics, `status` the JSON of
the page, both of a snapshot; `service` answers the requests.
"""
