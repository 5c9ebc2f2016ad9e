"""Key agreement, authenticated encryption and signatures of clients.

The package ``cryptography`` provides X25519, HKDF with SHA-256, ChaCha20-Poly1305 and Ed25519.
Secrets come from the operating system, never from the random streams of a run.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedbolic.core import check
from fedbolic.core.reading import read_bytes

KEY_BYTES = 32
NONCE_BYTES = 12
SIGNATURE_BYTES = 64
SEAL_BYTES = NONCE_BYTES + 16
"""Number of bytes by which a ciphertext is longer than its plaintext."""

_MOST_BYTES = 2**16
"""Maximum size of a file with a key."""


class AlteredError(ValueError):
    """A message was altered, or does not come from its alleged sender."""


def new_secret() -> bytes:
    """Secret of 32 bytes from the operating system; any value is a valid private key."""
    return secrets.token_bytes(KEY_BYTES)


def agreement_key(secret: bytes) -> bytes:
    """Public key for key agreement (X25519).

    Args:
        secret: The private key.
    """
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


class Agreement:
    """Private key for key agreement, read once for many parties.

    Args:
        secret: The private key.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)

    def with_party(self, public: bytes) -> bytes:
        """Bytes that only the holders of two private keys can compute, for :func:`derive`.

        Args:
            public: Public key of the other party.

        Raises:
            AlteredError: If the public key has small order, so that the bytes would not be secret.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise AlteredError(f"a public key gives no secret: {error}") from error


def derive(common: bytes, *, session: bytes, purpose: bytes) -> bytes:
    """Secret of 32 bytes from what two parties share.

    Args:
        common: Result of :meth:`Agreement.with_party`.
        session: Bytes that identify the session.
        purpose: Use of the result; results for different purposes are independent.
    """
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=purpose).derive(common)


def seal(key: bytes, plaintext: bytes) -> bytes:
    """Nonce and ciphertext of a plaintext, encrypted and authenticated (ChaCha20-Poly1305).

    Args:
        key: Key of 32 bytes.
        plaintext: Bytes that only holders of the key may read.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Plaintext of a result of :func:`seal`.

    Args:
        key: The same key.
        sealed: Nonce and ciphertext as received.

    Raises:
        AlteredError: If ``sealed`` was altered, or sealed with another key.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except (InvalidTag, ValueError) as error:
        raise AlteredError("a ciphertext was altered, or encrypted with another key") from error


def identity(secret: bytes) -> bytes:
    """Public key with which others verify signatures (Ed25519).

    Args:
        secret: The private key.
    """
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, message: bytes) -> bytes:
    """Signature of a message.

    Args:
        secret: Private key of the signer.
        message: Bytes to sign.
    """
    return Ed25519PrivateKey.from_private_bytes(secret).sign(message)


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """True if the holder of an identity signed a message.

    Args:
        public: The identity, a public key.
        message: Message as received.
        signature: Signature as received.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def write_identities(folder: Path, num_clients: int) -> None:
    """Create long-term keys for the clients of a federation, in PEM files.

    ``<id>.pub`` is public. Every client needs all public keys, and must not receive them through
    the server. ``<id>.key`` is private and belongs only on the machine of that client.

    Args:
        folder: Folder of the keys; created if it is missing.
        num_clients: Number of clients, at least 1; ids start from 0.

    Raises:
        ValueError: If the folder already holds a key: nothing is overwritten.
    """
    check.at_least(1, num_clients=num_clients)
    folder.mkdir(parents=True, exist_ok=True)
    if found := sorted(folder.glob("*.key")):
        raise ValueError(f"{found[0]} exists: take another folder")
    for client_id in range(num_clients):
        key = Ed25519PrivateKey.generate()
        private = folder / f"{client_id}.key"
        private.touch(mode=0o600)
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        (folder / f"{client_id}.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )


def read_secret(folder: Path, client_id: int) -> bytes:
    """Private key of a client, from the folder of :func:`write_identities`.

    Args:
        folder: Folder of the keys.
        client_id: Id of the client.

    Raises:
        ValueError: If there is no such key, or it is not an Ed25519 key.
    """
    key = _parsed(folder / f"{client_id}.key", serialization.load_pem_private_key, None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{folder}/{client_id}.key is not an Ed25519 key: see write_identities")
    return key.private_bytes_raw()


def read_identity(folder: Path, client_id: int) -> bytes:
    """Public key of a client, from the folder of :func:`write_identities`.

    Args:
        folder: Folder of the keys.
        client_id: Id of the client.

    Raises:
        ValueError: If there is no such key, or it is not an Ed25519 key.
    """
    key = _parsed(folder / f"{client_id}.pub", serialization.load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{folder}/{client_id}.pub is not an Ed25519 key: see write_identities")
    return key.public_bytes_raw()


def _parsed(file: Path, parser: Callable[..., object], *more: object) -> object:
    if not file.is_file():
        raise ValueError(f"there is no key {file}: write_identities creates keys")
    try:
        return parser(read_bytes(file, _MOST_BYTES), *more)
    except Exception as error:  # the library raises many kinds for a damaged key
        reason = " ".join(str(error).split())
        raise ValueError(f"{file} is not a key that can be read: {reason:.200}") from error
