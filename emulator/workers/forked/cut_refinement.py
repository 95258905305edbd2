"""A division of groups among workers is changed, step by step, until less traffic crosses.

Each step is the one that takes most off the cut: a group goes to another worker, or two groups
change places (Kernighan and Lin 1970, Fiduccia and Mattheyses 1982, without their uphill steps).
No step leaves a worker with more work than :data:`SLACK` times an equal share, or than the
fullest had to begin with.
"""

from __future__ import annotations

import numpy as np

from emulator.workers.forked.cable_load import GroupLoad
from emulator.workers.forked.expected_traffic import Numbers

#: A worker's largest part of an equal share of the work, in percent.
SLACK = 110
#: Steps for each group at most, so that a large fabric is divided in seconds.
_STEPS = 2


def cut(load: GroupLoad, owner: Numbers) -> int:
    """Return the octets between groups of different owners."""
    return int(load.between[owner[:, None] != owner[None, :]].sum()) // 2


def refined(load: GroupLoad, owner: Numbers, busy: Numbers) -> Numbers:
    """Return the owner of each group after all steps from ``owner``.

    Every worker keeps one of the groups at least for which ``busy`` is 1.
    """
    owner = owner.copy()
    workers = int(owner.max(initial=0)) + 1
    works = np.zeros(workers, np.int64)
    np.add.at(works, owner, load.work)
    most = max(int(works.max()), int(load.work.sum()) * SLACK // (100 * workers))
    for _ in range(_STEPS * len(owner)):
        if not (_move(load, owner, busy, works, most) or _swap(load, owner, busy, works, most)):
            break
    return owner


def _gains(load: GroupLoad, owner: Numbers, workers: int) -> Numbers:
    """Octets that leave the cut when a group (row) goes to a worker (column)."""
    mine = np.zeros((len(owner), workers), np.int64)
    for worker in range(workers):
        mine[:, worker] = load.between[:, owner == worker].sum(axis=1)
    gains: Numbers = mine - mine[np.arange(len(owner)), owner][:, None]
    return gains


def _move(load: GroupLoad, owner: Numbers, busy: Numbers, works: Numbers, most: int) -> bool:
    """Take the best step of one group, if one is any good."""
    gains = _gains(load, owner, len(works))
    holders = np.zeros(len(works), np.int64)
    np.add.at(holders, owner, busy)
    last = (busy == 1) & (holders[owner] == 1)
    allowed = (works[None, :] + load.work[:, None] <= most) & ~last[:, None]
    gains = np.where(allowed, gains, 0)
    group, worker = divmod(int(gains.argmax()), len(works))
    if gains[group, worker] <= 0:
        return False
    works[owner[group]] -= load.work[group]
    works[worker] += load.work[group]
    owner[group] = worker
    return True


def _swap(load: GroupLoad, owner: Numbers, busy: Numbers, works: Numbers, most: int) -> bool:
    """Let the two groups change places that gain most, if any two do; busy ones with busy ones."""
    gains = _gains(load, owner, len(works))
    away = gains[:, owner]  # the row's group to the owner of the column's
    both = away + away.T - 2 * load.between
    more = load.work[None, :] - load.work[:, None]  # that the row's owner gets
    fits = works[owner][:, None] + more <= most
    allowed = fits & fits.T & (busy[:, None] == busy[None, :]) & (owner[:, None] != owner[None, :])
    both = np.where(allowed, both, 0)
    one, other = divmod(int(both.argmax()), len(owner))
    if both[one, other] <= 0:
        return False
    works[owner[one]] += more[one, other]
    works[owner[other]] -= more[one, other]
    owner[one], owner[other] = owner[other], owner[one]
    return True
