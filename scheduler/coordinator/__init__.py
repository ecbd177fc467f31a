"""The coordinator: the service that tells writers when and where to write (SGuard, section 5).

`http` moves bytes, `api` has the table of routes, `service` joins the online scheduler with the state that survives a
crash, `metadata` stores that state; `command` is `cairn coordinate`.
"""
