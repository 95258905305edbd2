"""Checks of endpoints' configurations, each with one sentence that names the field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from uet.addresses import Neighbours, ip_of


class ConfigurationError(ValueError):
    """A parameter is out of its range; the sentence names it."""


def must_be_of_one_version(address: str, neighbours: Iterable[str]) -> None:
    """The endpoint's own address and those of its neighbours are IP addresses of one version."""
    if isinstance(neighbours, Neighbours):
        try:
            known = neighbours.table.versions <= {ip_of(address).version}
        except ValueError:
            known = False  # the sentence is below
        if known:
            return
    versions = set()
    for name, value in (("address", address), *(("neighbours", peer) for peer in neighbours)):
        try:
            versions.add(ip_of(value).version)
        except ValueError:
            raise ConfigurationError(f"{name}: {value!r} is not an IP address") from None
    if len(versions) > 1:
        raise ConfigurationError(
            f"neighbours must be of the same IP version as the address {address}"
        )


def must_lie_within(config: object, limits: Mapping[str, tuple[int, int]]) -> None:
    """Each of these fields lies between its two limits, which are allowed themselves."""
    for name, (low, high) in limits.items():
        number = getattr(config, name)
        if not low <= number <= high:
            raise ConfigurationError(f"{name} is {number}; it must lie in {low}..{high}")


def must_be_among(config: object, choices: Mapping[str, Collection[object]]) -> None:
    """Each of these fields is one of its choices."""
    for name, known in choices.items():
        if getattr(config, name) not in known:
            listed = ", ".join(map(str, known))
            raise ConfigurationError(f"{name} is {getattr(config, name)!r}; choose one of {listed}")
