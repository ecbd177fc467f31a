"""Connections with TLS and a SASL login, for the blocking client: what is connected is ready for requests.

Invariants: the server's certificate is always checked; a server that cannot be trusted, or that refuses the login, is
no matter of trying again, so it raises SecurityFailed, which holds no secret; a SCRAM server must prove that it knows
the password too. Certificates whose files have changed are loaded before the next connection; files that cannot be
used then leave those loaded before in use. So it is with a login from a file of properties.

Sources: RFC 5802 by the package scramp, RFC 4616, KIP-152.
"""

import os
import socket
import ssl
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from scramp import ScramClient, ScramException

from logstore.base.addresses import Address
from logstore.base.client_tls import context_that_looks
from logstore.base.events import ignore
from logstore.base.secret_files import SecretFile
from logstore.client.errors import SecurityFailed
from logstore.client.network import Network
from logstore.client.properties import parse_properties
from logstore.client.security import ClientSecurity, SaslSecurity, TlsSecurity, parse_security
from logstore.errors import InvalidConfig

HANDSHAKE_KEY: Final = 17
HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_KEY: Final = 36
AUTHENTICATE_VERSION: Final = 0
MAX_REPLY_BYTES: Final = 64 * 1024
"""Of a reply before the login is done."""
_HEADER: Final = struct.Struct(">hhi")
_LENGTH: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


class SecureNetwork:
    """A network whose connections are secured. Raises InvalidConfig if the certificates or keys cannot be read."""

    def __init__(self, network: Network, security: ClientSecurity, client_id: str) -> None:
        self._network = network
        self._login = None if security.sasl is None else _following_login(security.sasl)
        self._client_id = client_id
        self._tls = None if security.tls is None else _following(security.tls)

    def connect(self, address: Address, timeout_s: float) -> socket.socket:
        """A connected, encrypted and logged-in socket. Raises OSError, SecurityFailed."""
        connection = self._network.connect(address, timeout_s)
        try:
            if self._tls is not None:
                connection = _encrypted(self._tls, connection, address)
            if self._login is not None:
                _LoginExchange(connection, address, self._client_id, self._login()).run()
        except BaseException:
            connection.close()
            raise
        return connection

    def monotonic_s(self) -> float:
        """As the network below."""
        return self._network.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """As the network below."""
        self._network.sleep(seconds)


_OTHER_NAME: Final = frozenset((62, 64))
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def _encrypted(context: ssl.SSLContext, connection: socket.socket, address: Address) -> socket.socket:
    try:
        return context.wrap_socket(connection, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        fault = "for another name" if error.verify_code in _OTHER_NAME else "that is not trusted"
        raise SecurityFailed(f"{address} presents a certificate {fault}: {error.verify_message}") from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        # A server that starts or stops is worth another attempt; a listener without TLS ends the connection too.
        said = "the connection ended during the TLS handshake; does its listener use TLS?"
        raise ConnectionResetError(said) from error
    except ssl.SSLError as error:
        reason = (error.reason or "the connection ended").lower().replace("_", " ")
        raise SecurityFailed(f"{address} fails the TLS handshake: {reason}; is its listener SSL?") from error


def _following(tls: TlsSecurity) -> ssl.SSLContext:
    """A context that is as new as the files, if there are any. Raises InvalidConfig."""
    names = [name for name in (tls.authorities_file, tls.certificate_file) if name]
    if not names:
        return _context(tls)
    return context_that_looks(partial(_context, tls), names, ignore, side="client")


def _context(tls: TlsSecurity) -> ssl.SSLContext:
    context = ssl.create_default_context() if not (tls.authorities or tls.authorities_file) else None
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(tls.authorities_file or None, None, tls.authorities or None)
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"the truststore {tls.authorities_file!r} cannot be read: {_reason(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_host
    try:
        if tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, None, tls.key_password.encode())
        elif tls.certificate:
            # OpenSSL reads keys from files only; this file is in memory and has no name.
            descriptor = os.memfd_create("keystore", os.MFD_CLOEXEC)
            try:
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(f"{tls.key}\n{tls.certificate}\n".encode())
                context.load_cert_chain(f"/proc/self/fd/{descriptor}", None, tls.key_password.encode())
            finally:
                os.close(descriptor)
    except (OSError, ValueError) as error:
        where = repr(tls.certificate_file) if tls.certificate_file else "in the options"
        raise InvalidConfig(f"the keystore {where} cannot be read: {_reason(error)}") from error
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM").lower().replace("_", " ")
    return getattr(error, "strerror", None) or "no PEM"


def _following_login(sasl: SaslSecurity) -> Callable[[], SaslSecurity]:
    """What gives the login of the next connection: as new as the file that it is from, if this host has that file."""
    if sasl.properties_file:
        try:
            return _LoginOfFile(sasl.properties_file)
        except InvalidConfig:
            pass  # the process that has read it is on another host, or the file is being changed
    return lambda: sasl


class _LoginOfFile:
    """The login in a file of properties. Raises InvalidConfig if the file has none when this is made."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._read: tuple[str, SaslSecurity] | None = None
        self._text = SecretFile(self._checked_text, path, ignore, setting="command-config")

    def __call__(self) -> SaslSecurity:
        """The login now; that of before if the file has none that can be used."""
        text, read = self._text(), self._read
        if read is None or read[0] != text:
            self._read = read = (text, self._login_in(text))
        return read[1]

    def _checked_text(self) -> str:
        try:
            text = Path(self._path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"{self._path!r} cannot be read") from error
        self._login_in(text)
        return text

    def _login_in(self, text: str) -> SaslSecurity:
        sasl = parse_security(parse_properties(text)).sasl
        if sasl is None:
            raise InvalidConfig(f"{self._path!r} has no login")
        return sasl


class _LoginExchange:
    """The requests of one login, in order."""

    def __init__(self, connection: socket.socket, address: Address, client_id: str, sasl: SaslSecurity) -> None:
        self._connection = connection
        self._address = address
        self._client_id = client_id.encode()
        self._sasl = sasl
        self._correlation_id = 0

    def run(self) -> None:
        """Log in. Raises OSError, SecurityFailed."""
        sasl = self._sasl
        self._choose(sasl.mechanism)
        if sasl.mechanism == "PLAIN":
            self._authenticate(f"\0{sasl.user}\0{sasl.password}")
            return
        try:
            scram = ScramClient([sasl.mechanism], sasl.user, sasl.password)
            scram.set_server_first(self._authenticate(scram.get_client_first()))
            scram.set_server_final(self._authenticate(scram.get_client_final()))
        except ScramException as error:
            raise self._failed(f"{sasl.mechanism} with user {sasl.user!r}: {error}") from error

    def _choose(self, mechanism: str) -> None:
        name = mechanism.encode()
        reply = self._ask(HANDSHAKE_KEY, HANDSHAKE_VERSION, _SHORT.pack(len(name)) + name)
        (code,) = _SHORT.unpack_from(reply)
        if code:
            raise self._failed(f"the mechanism {mechanism} is not served there, or its listener has no SASL", code)

    def _authenticate(self, message: str) -> str:
        data = message.encode()
        reply = self._ask(AUTHENTICATE_KEY, AUTHENTICATE_VERSION, _LENGTH.pack(len(data)) + data)
        (code,) = _SHORT.unpack_from(reply)
        (size,) = _SHORT.unpack_from(reply, _SHORT.size)
        at = 2 * _SHORT.size
        text = reply[at : at + max(size, 0)].decode("utf-8", "replace")
        if code:
            why = f"user {self._sasl.user!r} is refused; check the name and the password"
            raise self._failed(f"{why}: {text}" if text else why, code)
        return reply[at + max(size, 0) + _LENGTH.size :].decode("utf-8", "replace")

    def _ask(self, key: int, version: int, body: bytes) -> bytes:
        self._correlation_id += 1
        head = _HEADER.pack(key, version, self._correlation_id) + _SHORT.pack(len(self._client_id)) + self._client_id
        self._connection.sendall(_LENGTH.pack(len(head) + len(body)) + head + body)
        (size,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if not 2 * _LENGTH.size <= size <= MAX_REPLY_BYTES:
            raise self._failed(f"a reply of {size} bytes to a login")
        reply = self._receive(size)
        if _LENGTH.unpack_from(reply)[0] != self._correlation_id:
            raise self._failed("a reply to another request")
        return reply[_LENGTH.size :]

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            piece = self._connection.recv(size - len(parts))
            if not piece:
                with_tls = isinstance(self._connection, ssl.SSLSocket)
                which = "a SASL listener" if with_tls else "a SASL listener without TLS"
                more = "" if with_tls else " With TLS it needs security.protocol=SASL_SSL"
                raise ConnectionResetError(f"the connection ended during the login; is it {which}?{more}")
            parts += piece
        return bytes(parts)

    def _failed(self, why: str, code: int = 0) -> SecurityFailed:
        return SecurityFailed(f"no login at {self._address}: {why}" + (f" (error {code})" if code else ""))
