"""The metadata store of several hosts: an etcd 3.4 or newer, through its JSON interface over HTTP.

`settings` says where etcd is, `messages` has its requests and answers as pure functions, `connections` sends them,
`transport` finds an endpoint that answers, `watching` follows changes, `store` is the `MetadataStore`.
"""
