"""Step sizes over the course of training a table of points."""

from dataclasses import dataclass

from fedbolic.core import check


@dataclass(frozen=True)
class BurnInSchedule:
    r"""Multiplier of the step size: small at first, then 1, then falling linearly.

    .. math:: a_t = \begin{cases} s & t < b T \\
        \min\bigl(1, \max\bigl(l, (T - t) / (k T)\bigr)\bigr) & t \ge b T \end{cases}

    for the step :math:`t = 0, 1, \dots` out of :math:`T`. Steps of the optimiser or rounds are
    counted; both shares are of this one :math:`T`. Small steps at first let the points find
    their directions near the origin, where a short step still turns them far.

    Args:
        share: Share :math:`b` of the steps at the initial multiplier, in [0, 1].
        initial: Initial multiplier :math:`s`, above 0.
        cooling: Share :math:`k` of the steps over which the multiplier falls, in [0, 1]; 0 for no
            cooling.
        lowest: Least multiplier :math:`l` while cooling, in [0, 1].

    Raises:
        ValueError: If a setting is out of range or the two shares exceed 1; when called, if the
            step is negative or ``num_steps`` is below 1.

    References:
        Nickel and Kiela (2017), Sec. 3.2, arXiv:1705.08039, for the small steps.

    Example:
        >>> multiplier = BurnInSchedule()
        >>> [multiplier(step, num_steps=100) for step in (0, 6, 70, 85, 99)]
        [0.1, 1.0, 1.0, 0.5, 0.03333333333333333]
    """

    share: float = 0.06
    initial: float = 0.1
    cooling: float = 0.3
    lowest: float = 0.02

    def __post_init__(self) -> None:
        check.rate(share=self.share, cooling=self.cooling, lowest=self.lowest)
        check.positive(initial=self.initial)
        if self.share + self.cooling > 1:
            raise ValueError(
                f"share and cooling must not exceed 1 together, got {self.share} and {self.cooling}"
            )

    def __call__(self, step: int, *, num_steps: int) -> float:
        """The multiplier at a step; at ``num_steps`` and beyond it is the last one.

        Args:
            step: Number of steps (or rounds) already made, 0 or more.
            num_steps: Number of all steps (or rounds), at least 1.
        """
        check.at_least(0, step=step)
        check.at_least(1, num_steps=num_steps)
        if step < self.share * num_steps:
            return self.initial
        if not self.cooling:
            return 1.0
        left = max(num_steps - step, 0) / (self.cooling * num_steps)
        return min(1.0, max(self.lowest, left))
