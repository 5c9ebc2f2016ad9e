"""FlyNN for scikit-learn: FlyHash as a transformer, and the nearest-neighbour classifier."""

import itertools
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.utils import ClassifierTags, Tags
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from fedbolic.core import check
from flynn import bloom
from flynn.channels import Channels
from flynn.fitted import Fitted, Rescaling, draw_lift, hashes

CHANNELS: tuple[Channels, ...] = ("on-off", "signed", "plain")
"""Channels that ``auto`` compares; the first of equally good ones is taken."""

SCALINGS: tuple[Rescaling, ...] = (None, "range", "standard")
"""Scalings that ``auto`` compares; the first of equally good ones is taken."""


class FlyHash(TransformerMixin, BaseEstimator):
    """FlyHash transformer, whose output is a sparse matrix of zeros and ones.

    Args:
        dim: Length of the hash, m, at least 1; ``None`` for 256 per feature.
        fan_in: Number of inputs in each row of the lift, s, at least 1; ``None`` for a tenth of all
            inputs, rounded up (``on-off`` has two inputs per feature).
        active: Number of ones in a hash, rho, in 1 .. ``dim``; ``None`` for 32, or half of ``dim``
            if that is less.
        channels: ``plain`` hashes the features and ignores a constant added to all of them;
            ``signed`` gives each feature a random sign; ``on-off`` hashes features and negatives.
        scaling: Scaling of features that :meth:`fit` learns: ``standard`` for z-scores, ``range``
            to map minimum and maximum to -1 and 1; ``None`` for no scaling.
        seed: Seed of the lift, at least 0.

    Attributes:
        n_features_in_: Number of features.
        num_bits_: Length of the hash.
        num_winners_: Number of ones in a hash.
        rows_: Inputs in each row of the lift, ``(num_bits_, fan_in)``; with ``on-off``, input
            ``d + j`` is minus feature ``j``.
        signs_: Sign of each feature in each channel, or ``None``.
        scaler_: Fitted scikit-learn scaler, or ``None``.

    References:
        Ram and Sinha (2022), Eq. (2), arXiv:2112.07157.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(3, 10))
        >>> FlyHash(dim=40, active=4).fit_transform(X).sum(axis=1).tolist()
        [4.0, 4.0, 4.0]
    """

    n_features_in_: int

    def __init__(
        self,
        dim: int | None = None,
        fan_in: int | None = None,
        active: int | None = None,
        *,
        channels: Channels = "plain",
        scaling: Rescaling = None,
        seed: int = 0,
    ) -> None:
        self.dim, self.fan_in, self.active, self.seed = dim, fan_in, active, seed
        self.channels: Channels = channels
        self.scaling: Rescaling = scaling

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> "FlyHash":
        """Draw the lift and fit the scaler.

        Args:
            X: Examples, (n, d); without ``scaling``, only the number of features matters.
            y: Ignored.

        Raises:
            ValueError: If a size does not fit the features.
        """
        del y
        fitted = draw_lift(self, _examples(self, X, reset=True))
        self.rows_, self.num_winners_, self.signs_, self.scaler_ = fitted
        self.num_bits_ = len(self.rows_)
        return self

    def transform(self, X: ArrayLike) -> csr_array:
        """Hashes of the examples, ``(n, num_bits_)``.

        Args:
            X: Examples, (n, d).

        Raises:
            ValueError: If a value is not finite.
        """
        check_is_fitted(self)
        X = _examples(self, X, reset=False)
        fitted = Fitted(self.rows_, self.num_winners_, self.signs_, self.scaler_)
        winners = hashes(X, fitted).numpy()
        starts = np.arange(len(X) + 1) * self.num_winners_
        shape = (len(X), self.num_bits_)
        return csr_array((np.ones(winners.size), winners.ravel(), starts), shape=shape)


class FlyNNClassifier(ClassifierMixin, BaseEstimator):
    """Nearest-neighbour classifier with one Bloom filter of hashes per class.

    The model stores only counts, so incremental learning, unlearning and leave-one-out are exact.

    Args:
        dim: Length of the hash, m, at least 1; ``None`` for 256 per feature.
        fan_in: Number of inputs in each row of the lift, s, at least 1; ``None`` for a tenth of all
            inputs, rounded up (``on-off`` has two inputs per feature).
        active: Number of ones in a hash, rho, in 1 .. ``dim``; ``None`` for 32, or half of ``dim``
            if that is less.
        decay: Gamma, in [0, 1): factor of a filter weight for each counted example.
        channels: ``on-off`` hashes features and negatives; ``signed`` gives each feature a random
            sign; ``plain`` (paper) ignores a constant added to all features; ``auto`` takes those
            with most right answers for examples of :meth:`fit`, or of the first
            :meth:`partial_fit`, each left out of the counts in its turn.
        scaling: Scaling of features: ``standard`` for z-scores, ``range`` to map minimum and
            maximum to -1 and 1; ``None`` for no scaling; ``auto`` as for ``channels``. With both,
            nine pairs are compared, so fitting takes about nine times as long. Examples of a weight
            below 1 have no say in the choice: if there are no others, it is ``on-off`` and
            ``None``. The scaler, which has seen all examples, is fitted and chosen in :meth:`fit`
            or the first :meth:`partial_fit` and then fixed; :meth:`unlearn` does not change it.
        seed: Seed of the lift, at least 0.

    Attributes:
        classes_: The labels.
        n_features_in_: Number of features.
        counts_: Number of examples of each class with a one at each position, (num_classes, dim).
        rows_: Inputs in each row of the lift, (dim, fan_in); with ``on-off``, input ``d + j`` is
            minus feature ``j``.
        num_winners_: Number of ones in a hash.
        signs_: Sign of each feature in each channel, or ``None``.
        scaler_: Fitted scikit-learn scaler, or ``None``.
        channels_: Channels that were given or chosen.
        scaling_: Scaling that was given or chosen.

    References:
        Ram and Sinha (2022), Algorithm 1, arXiv:2112.07157.

    Example:
        >>> X = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 3.0], [2.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
        >>> model = FlyNNClassifier(dim=30, fan_in=1, active=3).fit(X, ["up", "up", "down", "down"])
        >>> model.predict([[0.1, 1.0, 5.0]]).tolist()
        ['up']
    """

    n_features_in_: int

    def __init__(
        self,
        dim: int | None = None,
        fan_in: int | None = None,
        active: int | None = None,
        *,
        decay: float = 0.5,
        channels: Channels | Literal["auto"] = "auto",
        scaling: Rescaling | Literal["auto"] = "auto",
        seed: int = 0,
    ) -> None:
        self.dim, self.fan_in, self.active = dim, fan_in, active
        self.decay, self.seed = decay, seed
        self.channels: Channels | Literal["auto"] = channels
        self.scaling: Rescaling | Literal["auto"] = scaling

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "FlyNNClassifier":
        """Draw the lift, fit the scaler, and count the hashes of the examples.

        Args:
            X: Examples, (n, d).
            y: Their labels.
            sample_weight: Weight of each example, at least 0; ``None`` for 1 each.

        Raises:
            ValueError: If a value is not finite, or a size does not fit the features.
        """
        X, y = _labelled(self, X, y, reset=True)
        self._begin(unique_labels(y), X, y, sample_weight)
        self.counts_ = self._counts(X, y, sample_weight)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "FlyNNClassifier":
        """Add examples to the counts.

        Args:
            X: Examples, (n, d).
            y: Their labels.
            classes: All labels of this and later calls; required in the first call.
            sample_weight: Weight of each example, at least 0; ``None`` for 1 each.

        Raises:
            ValueError: If a label is not among the classes, or the first call has no classes.
        """
        first = not hasattr(self, "counts_")
        X, y = _labelled(self, X, y, reset=first)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit needs classes: give all labels")
            self._begin(unique_labels(classes), X, y, sample_weight)
        counts = self._counts(X, y, sample_weight)
        self.counts_ = counts if first else self.counts_ + counts
        return self

    def unlearn(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "FlyNNClassifier":
        """Remove examples exactly, as if they had never been learned.

        Args:
            X: Examples that were learned, (n, d).
            y: Labels with which they were learned.
            sample_weight: Weights with which they were learned; ``None`` for 1 each.

        Raises:
            ValueError: If the examples cannot all have been learned.
        """
        check_is_fitted(self)
        X, y = _labelled(self, X, y, reset=False)
        left = self.counts_ - self._counts(X, y, sample_weight)
        if (left < 0).any():
            raise ValueError("these examples were not all learned: a count would be below 0")
        self.counts_ = left
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Negative log novelty score of each class; for two classes, the difference of both.

        Args:
            X: Examples, (n, d).
        """
        near = -self._scores(X).numpy()
        return near[:, 1] - near[:, 0] if len(self.classes_) == 2 else near

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Class with the lowest novelty score of each example; the first of equal ones.

        Args:
            X: Examples, (n, d).
        """
        scores = self._scores(X)
        return self.classes_[bloom.predictions(scores).numpy()]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Reciprocal novelty score of each class, normalized to sum to 1.

        Args:
            X: Examples, (n, d).
        """
        return (-self._scores(X)).softmax(dim=1).numpy()

    def leave_one_out(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Leave-one-out predictions of the learned examples.

        Args:
            X: Examples that were learned with weight 1, (n, d).
            y: Their labels.

        Raises:
            ValueError: If an example was not learned.
        """
        check_is_fitted(self)
        X, y = _labelled(self, X, y, reset=False)
        winners = self._hashes(X)
        counts = torch.from_numpy(self.counts_)
        labels = torch.from_numpy(self._codes(y))
        scores = bloom.log_scores(counts, winners, self.decay, left_out=labels)
        return self.classes_[bloom.predictions(scores).numpy()]

    def _begin(
        self, classes: NDArray[Any], X: NDArray[Any], y: NDArray[Any], sample_weight: Any
    ) -> None:
        bloom.check_decay(self.decay)
        self.classes_ = classes
        weights = _weights(X, sample_weight)
        check.one_of((*CHANNELS, "auto"), channels=self.channels)
        if self.scaling is not None:
            check.one_of(("standard", "range", "auto"), scaling=self.scaling)
        kinds = CHANNELS if self.channels == "auto" else (self.channels,)
        scalings = SCALINGS if self.scaling == "auto" else (self.scaling,)
        pairs = list(itertools.product(scalings, kinds))
        self.scaling_, self.channels_ = (
            max(pairs, key=lambda pair: self._num_right(*pair, X, y, weights))  # first of equals
            if len(pairs) > 1
            else pairs[0]
        )
        fitted = draw_lift(self._with(self.scaling_, self.channels_), X, weights)
        self.rows_, self.num_winners_, self.signs_, self.scaler_ = fitted

    def _with(self, scaling: Rescaling, channels: Channels) -> Any:
        """An estimator of these settings that knows the number of features."""
        other: Any = clone(self)
        other.set_params(scaling=scaling, channels=channels)
        other.n_features_in_ = self.n_features_in_
        return other

    def _num_right(
        self,
        scaling: Rescaling,
        channels: Channels,
        X: NDArray[Any],
        y: NDArray[Any],
        weights: NDArray[np.float64] | None,
    ) -> float:
        """Weight of the examples that are classified rightly while one of each is left out."""
        model = self._with(scaling, channels).fit(X, y, weights)
        own = np.ones(len(X)) if weights is None else weights
        whole = own >= 1
        if not whole.any():
            return 0.0
        return float(own[whole] @ (model.leave_one_out(X[whole], y[whole]) == y[whole]))

    def _hashes(self, X: NDArray[Any]) -> Tensor:
        return hashes(X, Fitted(self.rows_, self.num_winners_, self.signs_, self.scaler_))

    def _codes(self, y: NDArray[Any]) -> NDArray[np.int64]:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"label {unknown[0]} is not among the classes {self.classes_}")
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _counts(self, X: NDArray[Any], y: NDArray[Any], sample_weight: Any) -> NDArray[Any]:
        winners = self._hashes(X)
        weights = _weights(X, sample_weight)
        counts = bloom.count(
            winners,
            torch.from_numpy(self._codes(y)),
            dim=len(self.rows_),
            num_classes=len(self.classes_),
            weights=None if weights is None else torch.from_numpy(weights),
        ).numpy()
        whole = weights is not None and bool((weights == weights.round()).all())
        return counts.astype(np.int64) if whole else counts

    def _scores(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        X = _examples(self, X, reset=False)
        winners = self._hashes(X)
        return bloom.log_scores(torch.from_numpy(self.counts_), winners, self.decay)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # scikit-learn's check has two features, for which there are only two distinct hashes
        tags.classifier_tags = ClassifierTags(poor_score=True)
        return tags


def _examples(model: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Examples validated by scikit-learn: finite, with the fitted number of features."""
    return validate_data(model, X=X, reset=reset)  # type: ignore[return-value]  # always arrays


def _labelled(model: Any, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Validated examples and class labels."""
    found = validate_data(model, X=X, y=y, reset=reset)
    check_classification_targets(found[1])
    return found  # type: ignore[return-value]  # always arrays


def _weights(X: NDArray[Any], sample_weight: Any) -> NDArray[np.float64] | None:
    """Validated sample weights; ``None`` for weight 1 each."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
