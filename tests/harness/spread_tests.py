"""Which tests a worker of xdist takes together: those of a file, or each long one by itself."""

from pathlib import Path

from xdist.scheduler import LoadFileScheduling

#: Files whose tests are long and share nothing; what is last has no file before it to wait for.
SPREAD = frozenset(
    {
        "test_bench_runs.py",
        "test_cluster_scenarios.py",
        "test_comparison_bands.py",
        "test_farm_runs.py",
        "test_kills.py",
        "test_model_sweep.py",
        "test_ranked_runs.py",
        "test_same_results.py",
        "test_storage_scenarios.py",
        "test_traffic_bands.py",
    }
)


class SpreadScheduling(LoadFileScheduling):
    """Files stay together, for their fixtures, and those with many tests begin.

    Tests of :data:`SPREAD` are handed out last and one by one, so that no worker is left with a
    long file when the others have ended.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if Path(file).name in SPREAD else file
