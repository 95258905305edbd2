"""The parameters of jobs that train a recurrent network with data parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.scenario import parameter
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network.recurrence import RecurrentModel
from scenarios.workloads.network.replica_learning import ReplicaLearning
from topologies.parts.design_parameters import COUNT, TIME

_WIDTH, _LENGTH, _OUTPUTS = 4, 4, 2
#: The learning rate (millionths).
RATE = 5_000
_MILLION = 10**6


@dataclass(frozen=True, kw_only=True)
class ReplicaParameters:
    """The parameters of the network, its samples, and the iterations of a run."""

    samples: int = parameter(4, COUNT, help="samples of a mini-batch")
    hidden: int = parameter(128, COUNT, help="numbers of the hidden state; weights are its square")
    gradient_time: int = parameter(
        20_000, TIME, help="time of a GPU for the gradient of its mini-batch, forward and backward"
    )
    warmups: int = parameter(0, WARMUPS, help="iterations before those that count")
    iterations: int = parameter(1, COUNT, help="jobs that count, from the same first weights")

    def learning(self, replicas: int, epochs: int, seed: int, rate: int = RATE) -> ReplicaLearning:
        """Return the training of ``replicas`` at a learning rate of ``rate`` millionths."""
        return ReplicaLearning(
            model=RecurrentModel(_WIDTH, self.hidden, _LENGTH, _OUTPUTS),
            replicas=replicas,
            samples=self.samples,
            epochs=epochs,
            rate=rate / _MILLION,
            seed=seed,
        )
