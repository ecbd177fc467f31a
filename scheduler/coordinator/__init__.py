"""The coordinator: the service that tells writers when and where to write (SGuard, section 5).

`http` moves bytes, `api` says what may be asked, `service` joins the online scheduler with what must outlive a crash,
`metadata` is where that is kept; `command` is `cairn coordinate`.
"""
