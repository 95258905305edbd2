"""Strong scaling: how much faster the same work is done by more GPUs, drawn beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

DAY_S, YEAR_S = 86_400, 365.25 * 86_400
#: FLOPs of the training of GPT-3 with 175B parameters (Brown et al., arXiv 2005.14165, table D.1).
GPT3_FLOPS = 3.14e23
#: A textbook states for it: years on one GPU, and days on so many.
STATED_YEARS, STATED_GPUS, STATED_DAYS = 165, 1024, 16
_WIDTH = 40


def seconds(flops: float, gpus: int, tflops: float) -> float:
    """Return how long ``gpus`` compute ``flops`` if they scale ideally."""
    return flops / (gpus * tflops * 1e12)


def needed_tflops(flops: float, gpus: int, within_s: float) -> float:
    """Return what each of ``gpus`` reaches if they compute ``flops`` in ``within_s``."""
    return flops / (gpus * within_s * 1e12)


def drawn(rows: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Yield the drawing of ``rows``: GPUs and the time of a step (us), the first the baseline."""
    gpus, time_us = rows[0]
    most = max(count for count, _ in rows) / gpus
    yield "GPUs  step (us)  speed-up   ideal   # as measured, . what is missing to ideal"
    for count, took_us in rows:
        speed, ideal = time_us / took_us, count / gpus
        filled, whole = (round(_WIDTH * part / most) for part in (min(speed, ideal), ideal))
        bar = "#" * filled + "." * (whole - filled)
        yield f"{count:>4} {took_us:>10.2f} {speed:>9.2f} {ideal:>7.2f}   {bar}"


def example(tflops: float) -> Iterator[str]:
    """Yield the textbook's example: the rates that its two times need, beside ``tflops``."""
    one = needed_tflops(GPT3_FLOPS, 1, STATED_YEARS * YEAR_S)
    many = needed_tflops(GPT3_FLOPS, STATED_GPUS, STATED_DAYS * DAY_S)
    yield f"a training of 175B parameters, {GPT3_FLOPS:.3G} FLOPs, with ideal scaling:"
    for rate, what in (
        (one, f"the rate of {STATED_YEARS} years on one GPU"),
        (many, f"the rate of {STATED_DAYS} days on {STATED_GPUS} GPUs"),
        (tflops, "the rate of this run"),
    ):
        alone = seconds(GPT3_FLOPS, 1, rate) / YEAR_S
        joint = seconds(GPT3_FLOPS, STATED_GPUS, rate) / DAY_S
        yield (
            f"{rate:7.1f} TFLOPS a GPU: {alone:6.1f} years on 1, {joint:5.1f} days on "
            f"{STATED_GPUS:,} GPUs ({what})"
        )
