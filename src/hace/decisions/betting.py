"""Tests of a mean by betting: valid at any time, for losses of any shape between 0 and 1.

Bet a share of a capital of 1 on each loss X_i, against the claim that its mean given the past is on one side of a limit m:

    against "at most m"     K_n = prod (1 + b (X_i - m) / m)              b from 0 to 1
    against "at least m"    K_n = prod (1 + b (m - X_i) / (1 - m))

Under the claim no bet gains on average, so K_n is a non-negative supermartingale that starts at 1. It ever reaches 1 / delta
with probability at most delta (Ville's inequality): whoever stops at that point, after as many looks as they like, errs with
probability delta at most. The average over several bets b, fixed beforehand, is again such a capital, and grows almost as fast
as the best of them. No factor grows with X_i in the second form, so smaller losses never have less capital.

References: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting"; Ramdas et al. 2023,
"Game-theoretic statistics and safe anytime-valid inference".
"""

from __future__ import annotations

import numpy as np

_BETS = np.geomspace(0.01, 0.99, 16)


def capital_against_at_most(losses: np.ndarray, limit: float) -> np.ndarray:
    """(n,) the capital after each loss (n,), of bets against a mean of at most the limit."""
    return _capital((losses - limit) / limit, _BETS)


def capital_against_at_least(losses: np.ndarray, limit: float, bets: np.ndarray = _BETS) -> np.ndarray:
    """(n,) the capital after each loss (n,), of bets against a mean of at least the limit; from 0 to 1, fixed beforehand.

    Example:
        >>> capital_against_at_least(np.zeros(3), 0.5).round(2).tolist()
        [1.23, 1.6, 2.2]
    """
    return _capital((limit - losses) / (1 - limit), bets)


def _capital(gains: np.ndarray, bets: np.ndarray) -> np.ndarray:
    """The average over bets of the products of 1 + bet x gain, where no gain is below -1."""
    with np.errstate(divide="ignore"):  # a bet of 1 may lose all
        logs = np.log1p(np.maximum(gains, -1.0)[:, None] * bets).cumsum(axis=0)
        return np.exp(np.minimum(logs, 700.0)).mean(axis=1)
