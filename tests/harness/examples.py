"""How many examples Hypothesis draws: a tenth of the full number, and all of them at night."""

from typing import Any

from hypothesis import HealthCheck, settings

#: The profile that ``pytest -m nightly`` loads.
NIGHTLY = "nightly"
SHARE = 10
#: At least so many are drawn.
LEAST = 5

# No example fails by time: a busy machine is slow.
settings.register_profile(
    "default",
    max_examples=100 // SHARE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(NIGHTLY, settings.get_profile("default"), max_examples=100)


def examples(full: int, **others: Any) -> settings:
    """Return settings of a test that draws ``full`` examples at night, and a tenth otherwise."""
    at_night = settings.get_current_profile_name() == NIGHTLY
    return settings(max_examples=full if at_night else max(LEAST, full // SHARE), **others)
