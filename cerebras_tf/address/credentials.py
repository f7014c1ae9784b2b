"""The file with which a client and the server of a wafer recognize each other.

It holds the server's certificate, which the client accepts and no other, and a token, without which
the server answers nothing. The server's own file holds the private key, too.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from cerebras_tf.errors import ConfigError
from cerebras_tf.installing import pip_install
from cerebras_tf.user_files import open_regular

# The name in the certificate. A client compares it, and not the name of the computer.
TLS_NAME = "cerebras-tf-wafer"
_TOKEN_BYTES = 32
_YEARS = 10
_MAX_BYTES = 1 << 16
_CERTIFICATE, _KEY, _TOKEN = "CERTIFICATE", "PRIVATE KEY", "CEREBRAS TF TOKEN"


@dataclass(frozen=True)
class Credentials:
    """The content of a credentials file.

    Attributes:
        certificate: in PEM.
        token: what a client sends.
        key: private key of the certificate, in PEM; None in a client's file.
    """

    certificate: bytes
    token: str
    key: Optional[bytes] = None

    @property
    def authorization(self) -> str:
        """What a client sends with every call."""
        return f"Bearer {self.token}"

    def accepts(self, authorization: str) -> bool:
        """Whether a client has sent the token; takes the same time for every wrong one."""
        sent, known = (_digest(text) for text in (authorization, self.authorization))
        return hmac.compare_digest(sent, known)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate."""
        body = b"".join(self.certificate.splitlines()[1:-1])
        return hashlib.sha256(base64.b64decode(body)).hexdigest()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def load_credentials(path: Union[str, Path], serves: bool = False) -> Credentials:
    """Reads a credentials file.

    Args:
        serves: whether it must have the private key.

    Raises:
        ConfigError: it is none, or others may read it.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"{path}: only its owner may read credentials. Received: mode {mode:04o}. Run "
                f"chmod 600 {path}; make new credentials if somebody may have read them."
            )
        text = file.read(_MAX_BYTES).decode("ascii", "replace")
    parts = {name: _block(text, name) for name in (_CERTIFICATE, _KEY, _TOKEN)}
    missing = [name for name in parts if parts[name] is None and (serves or name != _KEY)]
    token = "".join((parts[_TOKEN] or "").splitlines()[1:-1])
    if missing or len(_decoded(token)) != _TOKEN_BYTES:
        kind = "the server" if serves else "a client"
        raise ConfigError(
            f"{path}: must be credentials of {kind}. Received: a file without a valid "
            f"{', '.join(missing) or _TOKEN}. Use the file that `cerebras-tf credentials new` "
            f"wrote for {kind}."
        )
    certificate, key = parts[_CERTIFICATE], parts[_KEY]
    assert certificate is not None
    return Credentials(certificate.encode(), token, None if key is None else key.encode())


def _block(text: str, name: str) -> Optional[str]:
    """A block of a PEM file with its first and last line."""
    found = re.search(f"-----BEGIN {name}-----\n[A-Za-z0-9+/=\n]+-----END {name}-----\n", text)
    return found and found[0]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def new_credentials(client: Path, server: Path) -> Credentials:
    """Makes credentials and writes both files, readable by their owner alone.

    Args:
        client: the file for clients.
        server: the file for the server.

    Raises:
        ConfigError: a file exists, or the package cryptography is not installed.
        OSError: a file cannot be written.
    """
    for path in (client, server):
        if path.exists():
            raise ConfigError(
                f"{path}: credentials are not replaced. Received: a file that exists. Remove it, "
                "or choose another name."
            )
    certificate, key = _certificate()
    token = base64.b64encode(secrets.token_bytes(_TOKEN_BYTES)).decode()
    block = f"-----BEGIN {_TOKEN}-----\n{token}\n-----END {_TOKEN}-----\n".encode()
    for path, content in ((client, certificate + block), (server, certificate + block + key)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return Credentials(certificate, token, key)


def _certificate() -> tuple[bytes, bytes]:
    """A self-signed certificate of a new P-256 key, and the key; both in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            "credentials: the package cryptography must be installed. Received: an installation "
            "without it. " + pip_install("'cerebras_tf[address]'") + " installs it."
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_NAME)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), text
