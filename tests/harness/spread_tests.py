"""Which tests a worker of xdist takes together: those of a file, or each long one by itself."""

from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

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


#: Tests that need root wait for daemons and timers, where others keep a processor busy.
WAITING = "tests/system/"


class SpreadScheduling(LoadFileScheduling):
    """Files stay together, for their fixtures, and those with many tests begin.

    Every other worker begins with what is :data:`WAITING`, so that processors are busy from the
    beginning to the end.  Tests of :data:`SPREAD` are handed out last and one by one, so that no
    worker is left with a long file when the others have ended.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        for scope in self.workqueue:
            if scope.startswith(WAITING) == waiting:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if Path(file).name in SPREAD else file
