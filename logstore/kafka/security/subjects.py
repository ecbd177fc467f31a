"""The principals of clients with certificates, as Kafka names them: `User:SUBJECT`.

Invariant: a certificate's subject is written as Java writes it (RFC 2253: last part first), so that rules made for a
Kafka name the same client here.
"""

from typing import Final

from asn1crypto.x509 import Certificate, NameTypeAndValue

from logstore.kafka.api_types import ANONYMOUS
from logstore.kafka.security.principals import PREFIX

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 has names for; any other is written as its number and the bytes of its value."""
_ESCAPED: Final = frozenset(',+"\\<>;')


def principal_of_certificate(certificate: bytes) -> str:
    """The principal of a checked certificate, given as DER. A certificate without a subject names nobody."""
    subject = Certificate.load(certificate).subject
    parts = ["+".join(_attribute(pair) for pair in part) for part in subject.chosen]
    return PREFIX + ",".join(reversed(parts)) if parts else ANONYMOUS


def _attribute(pair: NameTypeAndValue) -> str:
    number = pair["type"].dotted
    keyword = _KEYWORDS.get(number)
    if keyword is None:
        return f"{number}=#{pair['value'].dump().hex()}"
    return f"{keyword}={_escaped(str(pair['value'].native))}"


def _escaped(value: str) -> str:
    text = "".join(f"\\{character}" if character in _ESCAPED else character for character in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    if text.endswith(" ") and len(value) > 1:
        text = f"{text[:-1]}\\ "
    return text
