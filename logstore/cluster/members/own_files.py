"""What a host of a cluster has in its data directory beside its replicas, by the names of the files.

Invariant: this module loads nothing of the cluster: a sidecar that is alone refuses directories by these names.
"""

from typing import Final

LABEL_FILE: Final = "host.json"
ADOPTION_FILE: Final = "adoption.json"
"""In a directory that `logstore.cluster.adoption.adoption` makes, as long as it is not done."""
ADOPTED_FILE: Final = "adopted.json"
"""In the directory of a sidecar that was alone, from the moment on when a cluster may have its log."""
