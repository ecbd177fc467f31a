"""The status page: one document that loads nothing, out of `page.html`, `page.css` and `page.js` beside this module.

Invariants: style and script are inside the document, and the policy that goes with it allows these two by their hashes
and no others: a text that would break out of the page's own escaping still runs nothing.
"""

import hashlib
from base64 import b64encode
from importlib.resources import files
from typing import NamedTuple


class StatusPage(NamedTuple):
    """The document, and its Content-Security-Policy."""

    body: bytes
    policy: str

    @classmethod
    def load(cls) -> "StatusPage":
        """Read the page's parts."""
        room = files("logstore.monitoring")
        html, style, script = (
            room.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
        )
        body = html.replace("/*style*/", style).replace("/*script*/", script)
        policy = "; ".join(
            (
                "default-src 'none'",
                f"script-src '{_hash(script)}'",
                f"style-src '{_hash(style)}'",
                "connect-src 'self'",
                "img-src data:",
                "base-uri 'none'",
                "form-action 'none'",
                "frame-ancestors 'none'",
            )
        )
        return cls(body.encode(), policy)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
