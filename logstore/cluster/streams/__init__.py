"""What clients ask a cluster for, but epochs: topics, streams that are appended, read and trimmed as replicated chunks,
producer ids, and users with their rights and quotas.
"""
