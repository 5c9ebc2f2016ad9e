"""Keys of private noise that follow from a seed, so that tests can repeat it."""

import hashlib
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.federated.noise.draws import SecretStream, SystemKeys


@dataclass(frozen=True)
class SeededKeys(SystemKeys):
    """Keys that follow from the random stream of the run: not private."""

    @override
    def stream(self, rng: Rng) -> SecretStream:
        return SecretStream(hashlib.sha256(repr((rng.seed, rng.path)).encode()).digest())
