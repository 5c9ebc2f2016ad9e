"""FlyNN for scikit-learn: the hash as a transformer, the classifier with all that counts give."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import ClassifierTags, Tags
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from flynn import bloom
from flynn.channels import Channels
from flynn.fitted import Fitted, Rescaling, draw_lift, hashes


class FlyHash(TransformerMixin, BaseEstimator):
    """The FlyHash of every example, as the ones of a sparse matrix.

    Args:
        dim: Length of the hash, m; ``None``: 256 for each feature.
        fan_in: Values that a row of the lift adds up, s; ``None``: a tenth of them, rounded up (of
            twice as many with ``on-off``).
        active: Ones of a hash, rho; ``None``: 32, or half of ``dim`` if that is fewer.
        channels: ``plain`` hashes the features, and is blind to what is added to all alike;
            ``signed`` gives each a random sign; ``on-off`` hashes them next to their negatives.
        scaling: What :meth:`fit` learns to do to features first: ``standard`` for z-scores,
            ``range`` to map least and largest to -1 and 1; `None` for nothing.
        seed: Of the lift, at least 0.

    Attributes:
        n_features_in_: Number of features.
        num_bits_: Length of the hash.
        num_winners_: Ones of a hash.
        rows_: The values that every row of the lift adds up, (num_bits_, fan_in); with ``on-off``
            ``d + j`` is minus feature ``j``.
        signs_: Of every feature in each channel, or `None`.
        scaler_: The scikit-learn transformer of features, or `None`.

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
        """Draw the lift, and learn how to scale; else only the number of features matters.

        Args:
            X: Examples, (n, d).
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
        """The hashes, (n, num_bits_).

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
    """Nearest neighbours by one bloom filter of hashes for each class.

    Counts are all it keeps, so it learns on, forgets, and leaves out exactly.

    Args:
        dim: Length of the hash, m; ``None``: 256 for each feature.
        fan_in: Values that a row of the lift adds up, s; ``None``: a tenth of them, rounded up (of
            twice as many with ``on-off``).
        active: Ones of a hash, rho; ``None``: 32, or half of ``dim`` if that is fewer.
        decay: Gamma, in [0, 1): how much of a filter's weight one more example leaves.
        channels: ``on-off`` hashes the features next to their negatives; ``signed`` gives each a
            random sign; ``plain``, the paper's, is blind to what is added to all alike.
        scaling: What the first call of :meth:`fit` or :meth:`partial_fit` learns from its examples
            to do to features: ``standard`` for z-scores, ``range`` to map least and largest to -1
            and 1; `None` for nothing. It stays as it was learned: :meth:`unlearn` takes counts
            back, but not what an example did to it.
        seed: Of the lift, at least 0.

    Attributes:
        classes_: The labels.
        n_features_in_: Number of features.
        counts_: Of each class's examples those with a one, by place, (num_classes, dim).
        rows_: The values that every row of the lift adds up, (dim, fan_in); with ``on-off``
            ``d + j`` is minus feature ``j``.
        num_winners_: Ones of a hash.
        signs_: Of every feature in each channel, or `None`.
        scaler_: The scikit-learn transformer of features, or `None`.

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
        channels: Channels = "on-off",
        scaling: Rescaling = None,
        seed: int = 0,
    ) -> None:
        self.dim, self.fan_in, self.active = dim, fan_in, active
        self.decay, self.seed = decay, seed
        self.channels: Channels = channels
        self.scaling: Rescaling = scaling

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "FlyNNClassifier":
        """Count the examples.

        Args:
            X: Examples, (n, d).
            y: Their labels.
            sample_weight: How often each counts, at least 0; ``None``: once.

        Raises:
            ValueError: If a value is not finite, or a size does not fit the features.
        """
        X, y = _labelled(self, X, y, reset=True)
        self._begin(unique_labels(y), X, sample_weight)
        self.counts_ = self._counts(X, y, sample_weight)
        return self

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "FlyNNClassifier":
        """Add examples to those that are counted.

        Args:
            X: Examples, (n, d).
            y: Their labels.
            classes: All labels that will ever come; needed the first time.
            sample_weight: How often each counts; ``None``: once.

        Raises:
            ValueError: If a label is not among the classes, or classes are not given at first.
        """
        first = not hasattr(self, "counts_")
        X, y = _labelled(self, X, y, reset=first)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit needs classes: all labels to come")
            self._begin(unique_labels(classes), X, sample_weight)
        counts = self._counts(X, y, sample_weight)
        self.counts_ = counts if first else self.counts_ + counts
        return self

    def unlearn(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "FlyNNClassifier":
        """Take examples out again: what is left is as if they had never come.

        Args:
            X: Examples that were learned, (n, d).
            y: Their labels then.
            sample_weight: What each counted then; ``None``: once.

        Raises:
            ValueError: If they cannot all have been learned.
        """
        check_is_fitted(self)
        X, y = _labelled(self, X, y, reset=False)
        left = self.counts_ - self._counts(X, y, sample_weight)
        if (left < 0).any():
            raise ValueError("these examples were not all learned: a count would be below 0")
        self.counts_ = left
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Minus the logarithm of the novelty score, by class; of two classes the difference.

        Args:
            X: Examples, (n, d).
        """
        near = -self._scores(X).numpy()
        return near[:, 1] - near[:, 0] if len(self.classes_) == 2 else near

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class for which each example is least novel; of equal ones the first.

        Args:
            X: Examples, (n, d).
        """
        scores = self._scores(X)
        return self.classes_[bloom.predictions(scores).numpy()]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The reciprocal of every class's novelty score, scaled to sum to one.

        Args:
            X: Examples, (n, d).
        """
        return (-self._scores(X)).softmax(dim=1).numpy()

    def leave_one_out(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Leave-one-out predictions of the learned examples.

        Args:
            X: Examples that were learned with weight one, (n, d).
            y: Their labels.

        Raises:
            ValueError: If one was not learned.
        """
        check_is_fitted(self)
        X, y = _labelled(self, X, y, reset=False)
        winners = self._hashes(X)
        counts = torch.from_numpy(self.counts_)
        labels = torch.from_numpy(self._codes(y))
        scores = bloom.log_scores(counts, winners, self.decay, left_out=labels)
        return self.classes_[bloom.predictions(scores).numpy()]

    def _begin(self, classes: NDArray[Any], X: NDArray[Any], sample_weight: Any) -> None:
        bloom.check_decay(self.decay)
        self.classes_ = classes
        fitted = draw_lift(self, X, _weights(X, sample_weight))
        self.rows_, self.num_winners_, self.signs_, self.scaler_ = fitted

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
        # with two features a hash has two values, and that is what is asked for there
        tags.classifier_tags = ClassifierTags(poor_score=True)
        return tags


def _examples(model: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Examples that scikit-learn found to be finite numbers, in the shape that was learned."""
    return validate_data(model, X=X, reset=reset)  # type: ignore[return-value]  # arrays came


def _labelled(model: Any, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same with labels of classes."""
    found = validate_data(model, X=X, y=y, reset=reset)
    check_classification_targets(found[1])
    return found  # type: ignore[return-value]  # arrays came


def _weights(X: NDArray[Any], sample_weight: Any) -> NDArray[np.float64] | None:
    """Weight of each example; ``None``: one."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
