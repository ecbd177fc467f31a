"""Found by Spark: it looks through modules named `pyspark_*` for a `DefaultSource`, so `format("cairn")` needs no
registration.
"""

from spe_adapter.datasource.source import CairnDataSource as DefaultSource

__all__ = ["DefaultSource"]
