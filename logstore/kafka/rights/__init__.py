"""Which request needs which right, and what is answered where it is missing.

`table` has a rule for every request that a sidecar serves; `rule` says what a rule is, `topics`, `groups` and `cluster`
split requests and filter answers, `data` does so for Produce and Fetch.
"""
