"""The port by which a scale-up switch reaches a GPU."""

from hypothesis import given
from hypothesis import strategies as st

from emulator.sim.endpoint.operations.nvlink import Ingress


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30))
def test_an_ingress_carries_one_octet_at_a_time_and_is_never_idle(
    copies: list[tuple[int, int]],
) -> None:
    """Against one that goes step by step: each copy takes the first free steps from its start."""
    ingress = Ingress()
    taken: set[int] = set()
    for start, duration in copies:
        steps = [step for step in range(start, 1000) if step not in taken][:duration]
        taken.update(steps)
        end = steps[-1] + 1 if steps else start
        assert ingress.admit(start, duration) == end
        assert end >= start + duration


def test_an_ingress_forgets_old_gaps_as_if_they_were_busy() -> None:
    ingress = Ingress()
    for number in range(1000):
        assert ingress.admit(10 * number, 5) == 10 * number + 5
    late = ingress.admit(0, 5)
    assert late > 5000
    assert ingress.admit(20_000, 5) == 20_005
