"""The bench of growing fabrics fits, extrapolates and gives up as it says."""

from pathlib import Path

import pytest

from emulator.errors import UserError
from tests.bench import grow
from tests.bench.grow import Growth, measure
from tests.bench.watched_run import GIB, Limits


def test_a_power_law_is_found_again() -> None:
    growth = Growth.of({gpus: 3.0 * gpus**1.5 for gpus in (64, 256, 1024)})
    assert growth.factor == pytest.approx(3.0)
    assert growth.exponent == pytest.approx(1.5)
    assert growth.residual == pytest.approx(0.0, abs=1e-9)
    assert growth.at(8192) == pytest.approx(3.0 * 8192**1.5)


def test_the_residual_is_the_largest_misfit_as_a_share() -> None:
    # The line of least squares through logarithms 0, 3, 0 is constant at their mean.
    growth = Growth.of({1: 1.0, 10: 8.0, 100: 1.0})
    assert growth.exponent == pytest.approx(0.0, abs=1e-12)
    assert growth.at(10) == pytest.approx(2.0)
    assert growth.residual == pytest.approx(1.0)  # 2 in place of 1; of 8 it is 0.75


def test_a_line_through_two_points_has_no_residual() -> None:
    growth = Growth.of({64: 1.0, 128: 4.0})
    assert growth.exponent == pytest.approx(2.0)
    assert growth.residual is None


def test_what_was_not_measured_is_extrapolated_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def run(fabric: str, gpus: int, ranks: int, limits: Limits) -> dict[str, float]:
        tried.append(gpus)
        if gpus > 256:
            raise UserError(f"{gpus} GPUs: longer than {limits.seconds:g} s")
        return dict.fromkeys(grow.FITTED, float(gpus)) | {"build_s": gpus**2 / 64}

    monkeypatch.setattr(grow, "run", run)
    found = measure({"model": (256, 1024, 512, 64, 128)}, (1,), beyond=(8192,))
    assert tried == [64, 128, 256, 512]  # none beyond the first that takes too much
    assert found["model_0256_r1_build_s"] == 1024.0
    assert found["model_r1_build_s_exponent"] == pytest.approx(2.0)
    assert found["model_r1_megabytes_per_gpu_exponent"] == pytest.approx(1.0)
    assert found["model_r1_build_s_residual"] == pytest.approx(0.0, abs=1e-9)
    for gpus in (512, 1024, 8192):
        assert f"model_{gpus:04}_r1_build_s" not in found
        extrapolated = found[f"model_{gpus:04}_r1_build_s_extrapolated"]
        assert extrapolated == pytest.approx(gpus**2 / 64)


def test_one_size_is_not_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grow, "run", lambda *arguments: dict.fromkeys(grow.FITTED, 1.0))
    found = measure({"model": (64,)}, (1,), beyond=(128,))
    assert set(found) == {f"model_0064_r1_{name}" for name in grow.FITTED}


@pytest.mark.nightly
def test_a_run_has_all_figures() -> None:
    figures = grow.run("model", 64, 1, Limits(seconds=120))
    assert set(figures) == set(grow.FITTED)
    assert all(figure > 0 for figure in figures.values())


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(seconds=0.25), "longer than 0.25 s"),
        (Limits(octets=GIB // 1024), "more than 0.000976562 GiB of memory"),
    ],
)
def test_a_run_beyond_a_limit_is_ended_and_named(
    limits: Limits, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = _children()
    assert measure({"model": (64, 128)}, (1,), limits) == {}
    assert _children() <= before  # what an earlier test left may have been waited for by now
    told = capfd.readouterr().err
    assert f"not measured: 64 GPUs on --fabric model, 1 ranks: {reason}\n" in told
    assert "measuring 128" not in told


def _children() -> set[str]:
    """Return the numbers of the processes that this one has started."""
    return {
        child
        for task in Path("/proc/self/task").iterdir()
        for child in (task / "children").read_text().split()
    }
