"""Noise from a secret key: unpredictable without it, and the same again with it."""

import hashlib
import itertools
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float64, UInt64
from numpy import ndarray
from torch import Tensor
from typing_extensions import override

from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.noise.integers import IntegerDraws

_KEY_BYTES = 32

DRAWS_VERSION = 2
"""Version of the draws of cohorts and noise, which is part of the state of a private run."""


@dataclass(frozen=True)
class SecretStream:
    """A named stream of random numbers that follow from a secret key.

    Without the key they cannot be told from true randomness (SHAKE-256). With it they can be drawn
    again, so a round that is repeated after an interruption releases the same numbers as before,
    not a second sample of the noise that could be averaged with the first.

    Args:
        key: 32 bytes.
        path: Name of the stream, from the outermost to the innermost part.

    Example:
        >>> stream = SecretStream(bytes(32)).at("round", 1)
        >>> torch.equal(stream.normal(3), SecretStream(bytes(32)).at("round", 1).normal(3))
        True
    """

    key: bytes
    path: tuple[str | int, ...] = ()

    @classmethod
    def fresh(cls) -> "SecretStream":
        """A stream with a key from the operating system."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    def at(self, *names: str | int) -> "SecretStream":
        """The stream named ``names`` below this one."""
        return SecretStream(self.key, self.path + names)

    def normal(self, size: int) -> Float64[Tensor, " size"]:
        r"""Independent draws from the standard normal distribution, on the CPU.

        Every draw is half the sum of four: a single quantile transform has so few values near a
        given number that the last digits of a sum could reveal the summand.

        Args:
            size: Number of draws.

        References:
            Holohan and Braghin (2021), Secure random sampling in differential privacy, Sec. 4,
            arXiv:2107.10138.
        """
        uniform = self.uniform(4 * size).numpy().reshape(4, size)
        return torch.from_numpy(scipy.special.ndtri(uniform).sum(axis=0) / 2)

    def integers(self) -> IntegerDraws:
        """Exact draws of integers; every call begins the same draws again."""
        blocks = itertools.count()
        return IntegerDraws(lambda size: self.at("words", next(blocks)).words(size))

    def words(self, size: int) -> UInt64[ndarray, " size"]:
        """Independent words of 64 bits.

        Args:
            size: Number of words.
        """
        # the key has a fixed length, so no two pairs of key and path give the same text
        digest = hashlib.shake_256(self.key + repr(self.path).encode())
        return np.frombuffer(digest.digest(8 * size), dtype="<u8")

    def uniform(self, size: int) -> Float64[Tensor, " size"]:
        """Independent draws from the uniform distribution on (0, 1), on the CPU.

        Args:
            size: Number of draws.
        """
        words = self.words(size) >> np.uint64(11)
        return torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-53)


def check_draws(state: Tree) -> None:
    """Refuse to continue a private run whose cohorts and noise an earlier version drew.

    Args:
        state: State that holds ``draws``, the version of the draws.

    Raises:
        RunStoppedError: If the version is another one.
    """
    if state.get("draws") != DRAWS_VERSION:
        raise RunStoppedError(
            "this private run was started by an earlier version, which drew its cohorts from 32 "
            "bits and its noise in floating point: run its configuration again"
        )


def check_mechanism(state: Tree, mechanism: str) -> None:
    """Refuse to continue a private run with other noise or cohorts than it began with.

    Args:
        state: State that holds the ``mechanism`` of the start, unless an earlier version wrote it.
        mechanism: Text that is equal for settings of which one may go on where the other stopped.

    Raises:
        RunStoppedError: If the ledger of these settings does not count earlier releases.
    """
    if (begun := state.get("mechanism", mechanism)) != mechanism:
        raise RunStoppedError(
            f"this private run was begun with {begun}, and {mechanism} does not count its "
            "earlier releases: keep its settings"
        )


@dataclass(frozen=True)
class SystemKeys:
    """Source of the keys of private noise: the operating system.

    Tests may derive keys from a seed instead, in a subclass. Its noise is not private.
    """

    def stream(self, rng: Rng) -> SecretStream:
        """A stream with a new key.

        Args:
            rng: Random stream that names the release; keys of the operating system do not follow
                from it.
        """
        del rng
        return SecretStream.fresh()


def warn_of_keys(source: SystemKeys) -> None:
    """Log a warning if keys of private noise do not come from the operating system.

    Args:
        source: Source of the keys.
    """
    if type(source) is not SystemKeys:
        logger.warning("NOT PRIVATE: the keys of the noise come from %s", source)


def check_keys(source: SystemKeys) -> None:
    """Refuse keys of private noise in a deployment that do not come from the operating system.

    Args:
        source: Source of the keys.

    Raises:
        ValueError: If it is any other class.
    """
    if type(source) is not SystemKeys:
        raise ValueError(
            f"the keys of the noise come from {source}, which a server may know as well, so that "
            "it can subtract the noise: leave noise out"
        )


class KeyedNoise(Reporting):
    """Base next to ``Method`` of methods whose clients may add noise, by keys of a source."""

    noise: Any
    """Source of the keys; another object than :class:`SystemKeys` has none."""

    traits: Traits

    def check_deployed(self, *, summed: int = 1) -> None:
        """Refuse keys that a server may know, if the noise protects a unit of privacy."""
        del summed
        if self.traits.privacy_unit is not None and isinstance(self.noise, SystemKeys):
            check_keys(self.noise)

    @override
    def costs(self, server_state: Tree) -> dict[str, float]:
        known = server_state.get("epsilon")
        return {} if known is None else {"privacy/epsilon": known}
