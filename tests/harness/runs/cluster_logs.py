"""Logs as several versions of nccl-tests print them, made for tests: no cluster's numbers."""

from collections.abc import Sequence


def devices(ranks: int, hosts: int, *, grouped: bool = True) -> list[str]:
    """Return the lines that name the GPUs."""
    each = ranks // hosts
    group = "Group  0 " if grouped else ""
    return [
        f"#  Rank {rank:2} {group}Pid {4000 + rank:6} on host-{rank // each} "
        f"device {rank % each:2} [0000:1b:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]


#: The heading of the table since 2.13, and of the older ones.
SINCE_2_13 = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong"
)
OF_2_9 = (
    "#       size         count    type   redop     time   algbw   busbw  error"
    "     time   algbw   busbw  error"
)
PER_ITERATION = (
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max"
    "    i_p99    i_cv%             timestamp"
)
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"

ROWS = (
    "       65536         16384     float     sum      -1    24.51    2.67    4.01      0"
    "    24.02    2.73    4.09      0",
    "     4194304       1048576     float     sum      -1    70.33   59.64   89.46      0"
    "    70.90   59.16   88.74    N/A",
)
ROWS_2_9 = (
    "       65536         16384   float     sum    24.51    2.67    4.01  2e-07"
    "    24.02    2.73    4.09  2e-07",
    "     4194304       1048576   float     sum    70.33   59.64   89.46  5e-07"
    "    70.90   59.16   88.74  5e-07",
)
ROWS_PER_ITERATION = tuple(
    "       " + " ".join([*words[:9], *statistics, *words[9:], *statistics, "2026-03-01 12:00:00"])
    for words in (row.split() for row in ROWS)
    for statistics in [("1.0", "2.0", "3.0", "4.0")]
)


def log_2_17(rows: Sequence[str] = ROWS, ranks: int = 4, test: str = "all_reduce") -> str:
    """Return a log that names its test."""
    return "\n".join(
        [
            "# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703",
            f"# Collective test starting: {test}_perf",
            "# nThread 1 nGpus 1 minBytes 65536 maxBytes 4194304 step: 64(factor) warmup iters: 5 "
            "iters: 20 agg iters: 1 validation: 1 graph: 0",
            "#", "# Using devices", *devices(ranks, 2), "#", SINCE_2_13, UNITS, *rows,
            "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 46.5", "#",
            f"# Collective test concluded: {test}_perf", "",
        ]
    )  # fmt: skip


def log_2_9() -> str:
    """Return a log that does not name its test, with errors and without roots."""
    return "\n".join(
        [
            "# nThread 1 nGpus 4 minBytes 65536 maxBytes 4194304 step: 64(factor) warmup iters: 5 "
            "iters: 20 validation: 1 ",
            "#", "# Using devices", *devices(4, 2, grouped=False), "#", OF_2_9, *ROWS_2_9, "",
        ]
    )  # fmt: skip


def log_2_19() -> str:
    """Return a log with statistics of the iterations and timestamps."""
    return log_2_17().replace(SINCE_2_13, PER_ITERATION).replace("\n".join(ROWS), "\n".join(
        ROWS_PER_ITERATION))  # fmt: skip
