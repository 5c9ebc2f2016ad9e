"""Key agreement, authenticated encryption and signatures of clients.

X25519, HKDF with SHA-256, ChaCha20-Poly1305 and Ed25519 are those of the package cryptography.
Secrets come from the operating system, never from the streams of a run.
"""

import secrets
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedbolic import check

KEY_BYTES = 32
NONCE_BYTES = 12
SIGNATURE_BYTES = 64
SEAL_BYTES = NONCE_BYTES + 16
"""Length of a ciphertext beyond that of its plaintext."""


class AlteredError(ValueError):
    """A message is not what its sender sent, or not from whom it says."""


def new_secret() -> bytes:
    """A secret of 32 bytes from the operating system; any is a private key."""
    return secrets.token_bytes(KEY_BYTES)


def agreement_key(secret: bytes) -> bytes:
    """The public key with which others agree on a secret with us (X25519).

    Args:
        secret: Our private key.
    """
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes, *, session: bytes, purpose: bytes) -> bytes:
    """The 32 bytes that only the holders of two private keys can compute.

    Args:
        secret: Ours.
        public: The other's.
        session: Bytes that no other exchange has.
        purpose: What the bytes are for: other purposes give independent bytes.

    Raises:
        AlteredError: If the public key is of small order, with which nothing is secret.
    """
    try:
        common = X25519PrivateKey.from_private_bytes(secret).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise AlteredError(f"a public key gives no secret: {error}") from error
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=purpose).derive(common)


def seal(key: bytes, plaintext: bytes) -> bytes:
    """The nonce and the plaintext, encrypted and authenticated (ChaCha20-Poly1305).

    Args:
        key: Of 32 bytes.
        plaintext: What only a holder of the key shall read.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The plaintext that :func:`seal` was given.

    Args:
        key: The same.
        sealed: What came.

    Raises:
        AlteredError: If it was sealed with another key, or altered since.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except (InvalidTag, ValueError) as error:
        raise AlteredError("a ciphertext was altered, or encrypted with another key") from error


def identity(secret: bytes) -> bytes:
    """The public key with which others check our signatures (Ed25519).

    Args:
        secret: Our private key.
    """
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, message: bytes) -> bytes:
    """The signature of a message.

    Args:
        secret: Ours.
        message: What we say.
    """
    return Ed25519PrivateKey.from_private_bytes(secret).sign(message)


def is_signed(public: bytes, message: bytes, signature: bytes) -> bool:
    """True if the holder of an identity signed a message.

    Args:
        public: The identity.
        message: What came.
        signature: What came with it.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def write_identities(folder: Path, num_clients: int) -> None:
    """Make long-term keys for the clients of a federation, in PEM files.

    ``<id>.pub`` is public: every client needs all of them, brought by other ways than the server.
    ``<id>.key`` is private: it belongs on the machine of that client alone.

    Args:
        folder: Where to; made if it is not there.
        num_clients: From id 0.

    Raises:
        ValueError: If a key is there already: nothing is overwritten.
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
    """A client's private key of :func:`write_identities`.

    Args:
        folder: Where it is.
        client_id: Whose.

    Raises:
        ValueError: If there is no such key.
    """
    key = serialization.load_pem_private_key(_read(folder / f"{client_id}.key"), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{folder}/{client_id}.key is no Ed25519 key: see write_identities")
    return key.private_bytes_raw()


def read_identity(folder: Path, client_id: int) -> bytes:
    """A client's public key of :func:`write_identities`.

    Args:
        folder: Where it is.
        client_id: Whose.

    Raises:
        ValueError: If there is no such key.
    """
    key = serialization.load_pem_public_key(_read(folder / f"{client_id}.pub"))
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{folder}/{client_id}.pub is no Ed25519 key: see write_identities")
    return key.public_bytes_raw()


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise ValueError(f"there is no key {file}: write_identities makes them")
    return file.read_bytes()
