"""Neural networks that train with real numbers, spread over the GPUs of a fabric.

One scenario, ``neural_training``, whose ``model`` is any of :data:`MODELS`; ``uetemu run`` knows
each of them by its own name, too.  Measured: the time of the whole training, its ideal (the longest
chain of layers and messages), and the loss of the first and the last epoch.  A training on one GPU
in numpy gives the reference: losses of all epochs, and weights of every GPU at the end, to the bit.
Its sums have the same order.  Inputs and first weights are drawn by the seed; the targets are the
outputs of the same network with other weights.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any

from emulator.errors import UserError
from emulator.result_rows import TableColumn
from emulator.scenario import Outcome, Trial, parameter, refuse_idle
from scenarios.collectives.size_sweep import WARMUPS
from scenarios.workloads.network import training_trial
from scenarios.workloads.network.attention_training import AttentionTraining
from scenarios.workloads.network.compression import FLOAT32, KINDS, TOPK, Compression
from scenarios.workloads.network.layers import ConvolutionalModel, RecurrentModel
from scenarios.workloads.network.parallel_training import (
    DELTAS,
    GRADIENTS,
    JOINED,
    OUTPUTS,
    PARTIAL,
    most_held,
)
from scenarios.workloads.network.replica_training import ReplicaTraining
from scenarios.workloads.network.tensors import Exchange, octets_of
from scenarios.workloads.network.training_plan import TrainingPlan, first_step_apart
from scenarios.workloads.network.training_trial import (
    DECIMAL,
    LearningParameters,
    PlacedTraining,
    TrainingParameters,
    grid,
    learning_measures,
    learning_trial,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME


@dataclass(frozen=True, kw_only=True)
class TrainingScenario:
    """A model that trains, divided over GPUs in one way: a scenario.

    ``sheet`` describes it.  ``fabric`` names the topology, ``trials`` makes the rows, and ``more``
    returns what a row has beyond :func:`learning_measures`.
    """

    sheet: str
    Parameters: type[Any]
    fabric: Callable[[Any], str]
    trials: Callable[[Any, Topology, int], list[Trial]]
    more: Callable[[Any, Trial, Outcome], Mapping[str, object]] = lambda *_: {}
    COLUMNS: tuple[TableColumn, ...] = training_trial.COLUMNS
    INSTEAD: Mapping[str, Mapping[str, tuple[str, Mapping[str, str]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.sheet)

    def topology(self, parameters: LearningParameters) -> str:
        """Return the fabric: two hosts with two GPUs each, or a host for each place of a GPU."""
        return self.fabric(parameters)

    def schedules(
        self, parameters: LearningParameters, topology: Topology, seed: int
    ) -> list[Trial]:
        """Return the trials, one for each row of the table."""
        return self.trials(parameters, topology, seed)

    def measures(
        self, parameters: LearningParameters, topology: Topology, trial: Trial, outcome: Outcome
    ) -> Mapping[str, object]:
        """Return the values of a row beyond time and ideal."""
        more = self.more(parameters, trial, outcome)
        return {**more, **learning_measures(topology, trial, outcome)}


def _parameters(base: type, **fields: Any) -> type[LearningParameters]:
    made = [(name, object, field) for name, field in fields.items()]
    return make_dataclass("Parameters", made, bases=(base,), frozen=True, kw_only=True)


def _widths(*default: int) -> Any:
    return parameter(default, COUNT, many=True, help="inputs, then the neurons of each layer")


_GRADIENT_TIME = "time of a GPU for the gradient of its mini-batch, forward and backward"


def _two_by_two(parameters: LearningParameters) -> str:
    """Two hosts with two GPUs each, two rail switches, a spine."""
    return "rail_clos:hosts=2,gpus_per_host=2,spines=1"


def _apart(gpus: int) -> str:
    """Return a fabric with one GPU in each host."""
    return f"rail_clos:hosts={max(2, gpus)},gpus_per_host=1,spines=1"


def _plan(parameters: Any, seed: int, **division: Any) -> TrainingPlan:
    """Return the training of a dense network, whose ``division`` over GPUs is given."""
    return TrainingPlan(
        widths=parameters.widths,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        layer_ns=parameters.layer_time,
        seed=seed,
        **division,
    )


def _dense(
    name: str,
    parameters: Any,
    topology: Topology,
    plan: TrainingPlan,
    facts: Mapping[str, object] | None = None,
) -> list[Trial]:
    placed = PlacedTraining(name, plan, topology, grid(topology, plan))
    return [placed.trial(parameters, facts)]


fnn = TrainingScenario(
    sheet="""\
Fnn: a feed-forward network of four layers trains on four GPUs in two hosts, with real numbers.

::

        host 0                              host 1
    +---------------------------+       +---------------------------+
    | GPU 0 ==NVLink==> GPU 1   |       | GPU 0 ==NVLink==> GPU 1   |
    | layer 1           layer 2 |       | layer 3           layer 4 |---> loss
    +---------------------|-----+       +---|-----------------------+
                          +---- RDMA -------+
                         rail1  spine  rail0

Traffic: each GPU computes one layer.  Its outputs travel to the GPU with the next layer, over
NVLink inside a host and over the fabric between the hosts.  The last GPU has the loss.  Then the
deltas travel the way back, each GPU computes gradient = delta x input, and steps its weights by
learning rate x gradient.  So it goes on for ``epochs``.

Every number is computed when its operation runs, from what arrived in the memory of that GPU
before.

What should be seen: only one GPU computes at a time.  With one micro-batch an epoch takes 12 times
``layer_time`` (4 layers forward, twice as long backward) and six messages one after the other.
The two between the hosts, of widths x samples x 4 octets, are small: latency is all that counts.

Here, over UET: 157.2 us for eight epochs, of which 96 are computing; the loss falls from 0.155 to
0.111.
""",
    Parameters=_parameters(TrainingParameters, widths=_widths(4, 8, 8, 4, 2)),
    fabric=_two_by_two,
    trials=lambda given, topology, seed: _dense(
        "feed-forward", given, topology, _plan(given, seed, stages=len(given.widths) - 1)
    ),
)

model_parallel = TrainingScenario(
    sheet="""\
Model_parallel: three layers on three GPUs, whose outputs and deltas cross the fabric.

::

      4 inputs       3 neurons      2 neurons      1 neuron
                    GPU 0          GPU 1          GPU 2
                   +-------+      +-------+      +-------+
      x (4) -----> | W 3x4 | ---> | W 2x3 | ---> | W 1x2 | ---> loss
                   +-------+ <--- +-------+ <--- +-------+
                             delta          delta

Traffic: the weight matrices have a row for each neuron.  Each GPU has one of them, multiplies it
with what arrives, and sends the outputs on.  With ``samples`` columns a message has neurons x
samples x 4 octets.  Backward each GPU sends the delta of its inputs.  GPUs stand in hosts of their
own, so that every message crosses the fabric.

What should be seen: four messages for each epoch, two forward and two backward, and a GPU that
waits most of the time.  The messages fit in one packet each.  Pipeline parallelism
(``pipeline_parallel``) fills the waiting with other micro-batches.

Here, over UET: 110.6 us for eight epochs, of which 72 are computing.
""",
    Parameters=_parameters(TrainingParameters, widths=_widths(4, 3, 2, 1)),
    fabric=lambda given: f"rail_clos:hosts={len(given.widths) - 1},gpus_per_host=1,spines=1",
    trials=lambda given, topology, seed: _dense(
        "model parallel", given, topology, _plan(given, seed, stages=len(given.widths) - 1)
    ),
)

tensor_parallel = TrainingScenario(
    sheet="""\
Tensor_parallel: each weight matrix is cut into halves, and an AllGather joins the outputs.

::

                       GPU 0                             GPU 1
                     +-----------------+               +-----------------+
    x (8) on both -> | W rows 1-2: 2x8 |            -> | W rows 3-4: 2x8 |
                     +-----------------+               +-----------------+
                        y1 y2 ----------- AllGather --------- y3 y4
                        y1 y2 y3 y4                     y1 y2 y3 y4      next layer

Traffic: the weight matrices have a row for each neuron: 4x8, and a 2x4 behind it.  Each GPU has
1/``parts`` of the rows of every matrix, and computes those neurons from all inputs.  The outputs
are joined by an AllGather, in which each GPU sends its share to each other one.  Backward a GPU has
only what its own neurons contribute to the delta of a layer's inputs.  So the GPUs exchange these
deltas, and each adds all of them in the order of the GPUs.  The first layer needs no such delta.

What should be seen: two collectives for each layer and epoch, one forward and one backward (but for
the first), on the way of every sample.  They cannot be hidden behind computing, which is why tensor
parallelism stays on NVLink where it can.  Here the GPUs are in hosts of their own; with
``--topology rail_clos:hosts=1,gpus_per_host=2,spines=1`` they share one.  A layer takes 1/``parts``
of ``layer_time``.

Here, over UET: 53.2 us for eight epochs, of which 24 are computing; with NVLink 40.8 us.
""",
    Parameters=_parameters(
        TrainingParameters,
        widths=_widths(8, 4, 2),
        parts=parameter(2, COUNT, help="GPUs over which each matrix is cut"),
    ),
    fabric=lambda given: _apart(given.parts),
    trials=lambda given, topology, seed: _dense(
        "tensor parallel", given, topology, _plan(given, seed, parts=given.parts)
    ),
)


@dataclass(frozen=True, kw_only=True)
class DataParallelParameters(TrainingParameters):
    widths: tuple[int, ...] = _widths(4, 8, 2)
    resumed: int = parameter(
        0, WARMUPS, help="epochs before, from whose weights (a checkpoint) the training goes on"
    )
    gradients: tuple[str, ...] = parameter(
        (FLOAT32,), choices=KINDS, many=True, help="what replicas exchange, a row each"
    )
    top: int = parameter(100_000, DECIMAL, help="share of a gradient that topk sends")
    feedback: str = parameter(
        "off", choices=("off", "on"), help="add what a gradient left out to the next one"
    )

    def __post_init__(self) -> None:
        if self.top > 10**6:
            raise UserError("top is a share of the gradient; take 1 or less")
        if TOPK not in self.gradients:
            refuse_idle(self, ("top",), "beside gradients that topk does not choose")
        if set(self.gradients) == {FLOAT32}:
            refuse_idle(self, ("feedback",), "beside gradients=float32")
        elif self.feedback == "on" and self.resumed:
            raise UserError(
                "a checkpoint does not have what gradients left out; take feedback=off or resumed=0"
            )


def data_parallel_plan(
    parameters: Any, topology: Topology, seed: int, gradients: str = FLOAT32
) -> TrainingPlan:
    """Return the training of all GPUs of ``topology``, a mini-batch each."""
    compression = None
    if gradients != FLOAT32:
        share = parameters.top / 10**6 if gradients == TOPK else 1.0
        compression = Compression(gradients, share, parameters.feedback == "on")
    gpus = len(topology.gpus)
    return _plan(
        parameters, seed, replicas=gpus, resumed=parameters.resumed, compression=compression
    )


def _data_parallel(parameters: Any, topology: Topology, seed: int) -> list[Trial]:
    return [
        trial
        for gradients in parameters.gradients
        for trial in _exchanging(gradients, parameters, topology, seed)
    ]


def _exchanging(gradients: str, parameters: Any, topology: Topology, seed: int) -> list[Trial]:
    plan = data_parallel_plan(parameters, topology, seed, gradients)
    facts: dict[str, object] = {"gradients": gradients}
    if plan.compression:
        return _dense("data parallel", parameters, topology, plan, facts)
    apart, bound = first_step_apart(plan)
    if apart > bound:
        raise UserError(
            f"the first step is {apart:g} from that of the whole batch, and rounding explains "
            f"{bound:g} at most: a defect of the network library; please report it"
        )
    facts |= {"apart": apart, "bound": bound}
    return _dense("data parallel", parameters, topology, plan, facts)


data_parallel = TrainingScenario(
    sheet="""\
Data_parallel: every GPU learns from a mini-batch of its own, and AllReduce joins the gradients.

::

      mini-batch 1     mini-batch 2     mini-batch 3     mini-batch 4
           |                |                |                |
        +-------+        +-------+        +-------+        +-------+
        | all W |        | all W |        | all W |        | all W |     forward, backward
        +-------+        +-------+        +-------+        +-------+
         gradient         gradient         gradient         gradient
           +----------------+-- AllReduce ---+----------------+
         step             step             step             step         the same W again

Traffic: all GPUs have all weights.  In each epoch every GPU computes the gradient of its
mini-batch.  A ring AllReduce over the GPUs in rank order adds the gradients, and each GPU steps its
own copy of the weights by the sum.  A GPU sends 2(n-1)/n of its gradient (all weights x 4 octets).

The training on one GPU adds
the gradients of the mini-batches in the order of the ring.

A GPU that learns from the whole batch at once adds the same products in another order.  ``apart``
is the largest difference of any weight from that, after one epoch, and ``bound`` the largest that
rounding allows.  Let g(N) = N u / (1 - N u). A sum of N products in any order is within g(N) of the
sum of their absolute values. Here u = 2^-24.  Two orders are thus within 2 g(N) of each other, and
the step multiplies that by the learning rate and rounds twice more.  The run fails if ``apart``
exceeds it.

What should be seen: all GPUs compute at the same time, and then the links are full at the same
time: the bursts of a data-parallel job.  The weights are the same on all GPUs after every epoch.

Here, over UET: 125.1 us for eight epochs, of which 48 are computing.  ``apart`` is 15 of the 334
billionths that rounding allows.

With ``gradients=float32,bfloat16,fp8,topk`` there is a row for each thing that replicas exchange
(``scenarios/workloads/network/compression.py``): a ring AllReduce of 4, 2 or 1 octets a number, and
for ``fp8`` the largest number of each before; or with ``topk`` an AllGather of the largest ``top``
of a gradient, 8 octets each.  ``feedback=on`` adds what was left out to the next gradient.  The
training on one GPU does the same.  An AllReduce sends 2(n-1)/n of the gradient, an AllGather n-1
times ``top`` of it: among many replicas topk loses.  With ``widths=64,128,32``, 20 epochs,
``rate=0.01`` and ``top=0.01`` the loss goes from 15.8 to 0.174 by float32 and bfloat16, 0.181 by
fp8 and 6.01 by topk, which sends 2949, 1475, 738 and 157 KB over the fabric.  With feedback fp8 and
topk come to 0.180 and 0.895.

With ``resumed=N`` the training goes on from the weights that its first N epochs have left, as a job
does from a checkpoint: it comes to the same bits as one that was not interrupted.
""",
    Parameters=DataParallelParameters,
    fabric=_two_by_two,
    trials=_data_parallel,
    COLUMNS=(
        training_trial.COLUMNS[0],
        TableColumn("gradients", "gradients", "", 9),
        *training_trial.COLUMNS[1:],
        TableColumn("apart", "apart", "(1e-9)", 8, divisor=1e-9),
        TableColumn("bound", "bound", "(1e-9)", 8, divisor=1e-9),
    ),
)


@dataclass(frozen=True, kw_only=True)
class PipelineParameters(TrainingParameters):
    widths: tuple[int, ...] = _widths(8, 8, 8, 8, 4)
    stages: int = parameter(4, COUNT, help="GPUs over which the layers are spread")
    micro_batches: tuple[int, ...] = parameter(
        (4, 8), COUNT, many=True, help="micro-batches of an epoch; a row for each"
    )
    epochs: int = parameter(2, COUNT, help="times that all samples are learned from")
    rate: int = parameter(10_000, DECIMAL, help="learning rate")
    layer_time: int = parameter(
        100_000, TIME, help="time of a layer forward for a micro-batch; backward takes twice that"
    )

    def __post_init__(self) -> None:
        if (len(self.widths) - 1) % self.stages:
            raise UserError(
                f"{len(self.widths) - 1} layers do not make {self.stages} equal stages; give "
                "widths for a multiple of the stages, and one for the inputs"
            )


def _pipelines(parameters: PipelineParameters, topology: Topology, seed: int) -> list[Trial]:
    stages, trials = parameters.stages, []
    for micro_batches in parameters.micro_batches:
        for order in ("gpipe", "1f1b"):
            plan = _plan(parameters, seed, stages=stages, micro_batches=micro_batches, order=order)
            held = [most_held(order, stage, stages, micro_batches) for stage in range(stages)]
            facts = {
                "micro_batches": micro_batches,
                "stages": stages,
                "held": max(held),
                "bubble_formula": (stages - 1) / (micro_batches + stages - 1),
            }
            trials += _dense(order, parameters, topology, plan, facts)
    return trials


def _bubble(parameters: PipelineParameters, trial: Trial, outcome: Outcome) -> dict[str, object]:
    """Return the share of the time in which a stage does not compute."""
    layers = (len(parameters.widths) - 1) // parameters.stages
    steps = parameters.epochs * trial.facts["micro_batches"]
    busy = steps * 3 * parameters.layer_time * layers
    return {"bubble": 1 - busy / outcome.mean_ns}


pipeline_parallel = TrainingScenario(
    sheet="""\
Pipeline_parallel: micro-batches staggered through stages, as GPipe and 1F1B order them.

::

    GPipe, 4 stages, 4 micro-batches (numbers: forward; letters: backward, twice as long)

    stage 0   1 2 3 4 . . . . . . . . . A A B B C C D D
    stage 1     1 2 3 4 . . . . . . A A B B C C D D
    stage 2       1 2 3 4 . . . A A B B C C D D
    stage 3         1 2 3 4 A A B B C C D D

Traffic: each stage is a GPU in a host of its own, with one layer or more.  It sends the outputs of
a micro-batch to the next stage, and the delta of its inputs to the stage before.  ``gpipe``
computes all micro-batches forward, then all backward.  ``1f1b`` computes as many forward as there
are later stages, then one forward and one backward in turns.  At the end of an epoch each stage
steps its weights by the sum of the gradients of all micro-batches.

Measured: for each order and number of micro-batches

- bubble: the share of the time in which a GPU does not compute, 1 - m (tF + tB) / (time of an
  epoch). There tF and tB = 2 tF are the times of a stage, and m counts micro-batches;
- formula: (p-1) / (m+p-1) with p stages (Huang et al., GPipe, section 2.3; Narayanan et al.,
  SC'21, section 2.2), which leaves the messages out;
- held: of how many micro-batches a stage keeps activations at most: m with GPipe, p with 1F1B.

The training on one GPU adds the gradients of the micro-batches in their order.

What should be seen: both orders have the same bubble, but 1F1B needs less memory.  More
micro-batches make it smaller.  It lies above its formula by the messages: 2(p-1) of them are on the
critical way of each epoch, and 1F1B waits for more of them than GPipe, because forward and backward
alternate.  With ``layer_time=0`` nothing but messages is left.

Here, over UET: 43.1 % (GPipe) and 43.2 % (1F1B) with four micro-batches, and 42.9 by the formula;
27.4 % and 27.7 % with eight, and 27.3 by the formula.  1F1B keeps four micro-batches of the eight.
""",
    Parameters=PipelineParameters,
    fabric=lambda given: _apart(given.stages),
    trials=_pipelines,
    more=_bubble,
    COLUMNS=(
        TableColumn("training", "order", "", 8),
        TableColumn("micro_batches", "micro-", "batches", 8),
        TableColumn("held", "held", "", 5),
        TableColumn("loss_first", "loss", "(first)", 9, 5),
        TableColumn("loss_last", "loss", "(last)", 9, 5),
        TableColumn("time_us", "time", "(us)", 9),
        TableColumn("ideal_us", "ideal", "(us)", 9),
        TableColumn("efficiency", "of ideal", "(%)", 8, 1, percent=True),
        TableColumn(
            "bubble", "bubble", "(%)", 7, 1, percent=True, words="the bubble was {} % of the time"
        ),
        TableColumn("bubble_formula", "formula", "(%)", 7, 1, percent=True),
        TableColumn("fabric_bytes", "fabric", "(B)", 9, 0),
        TableColumn("fabric_messages", "messages", "(fabric)", 8, rank=1),
        TableColumn("retransmitted_packets", "resent", "", 6),
        TableColumn("wrong", "#wrong", "", 6),
    ),
)

#: GPUs of a DP group, of a TP pair, and stages.
GROUP, PAIR, STAGES = 4, 2, 2


def _three_d(parameters: Any, topology: Topology, seed: int) -> list[Trial]:
    plan = _plan(
        parameters,
        seed,
        replicas=parameters.groups,
        stages=STAGES,
        parts=PAIR,
        micro_batches=parameters.micro_batches,
    )
    ranks = grid(topology, plan, lambda group, stage, part: group * GROUP + stage + STAGES * part)
    placed = PlacedTraining("3D parallel", plan, topology, ranks)
    return [placed.trial(parameters, links(placed.work.size.exchanges))]


def links(exchanges: Mapping[Exchange, int]) -> dict[str, object]:
    """Return the octets that pass inside DP groups and between them, by what they are for."""
    inner = {one: times for one, times in exchanges.items() if one.what != GRADIENTS}
    return {
        "forward_bytes": _octets(inner, OUTPUTS, JOINED),
        "backward_bytes": _octets(inner, DELTAS, PARTIAL),
        "crossing_bytes": sum(
            one.octets * times
            for one, times in inner.items()
            if one.source // GROUP != one.destination // GROUP
        ),
        "gradient_bytes": _octets(exchanges, GRADIENTS),
    }


def _octets(exchanges: Mapping[Exchange, int], *kinds: str) -> int:
    return octets_of({one: times for one, times in exchanges.items() if one.what in kinds})


three_d = TrainingScenario(
    sheet="""\
Three_d: data, pipeline and tensor parallelism at once, on eight GPUs in two hosts.

::

                  DP group 0: host 0                      DP group 1: host 1
                  x1-x4, x5-x8                            x9-x12, x13-x16
                +-----------------------------+         +-----------------------------+
    stage 0     | GPU 0 <-- TP --> GPU 2      |         | GPU 4 <-- TP --> GPU 6      |
                |   |                |        |  <-DP-> |   |                |        |
    stage 1     | GPU 1 <-- TP --> GPU 3      |         | GPU 5 <-- TP --> GPU 7      |
                +-----------------------------+         +-----------------------------+

Traffic: sixteen samples, x1 to x16, in two mini-batches of two micro-batches.  Each data-parallel
(DP) group learns from one mini-batch.  Its tensor-parallel (TP) ranks {0, 2} have the halves of
stage 0, {1, 3} those of stage 1.  Forward, each TP pair joins its outputs by AllGather after every
layer, and each GPU sends them to its successor in the next stage.  Backward, deltas go the other
way, and TP pairs add their halves of them.  At the end of an epoch each GPU and the one with the
same weights in the other group add their gradients (AllReduce), and step.

Measured: the time of the training, its ideal, the losses, and the octets

- forward: outputs, to the next stage and inside TP pairs; ``crossing``: those of them that leave a
  DP group;
- backward: deltas, likewise; ``gradients`` between the DP groups.

What should be seen: no forward and no backward traffic leaves a DP group, so ``crossing`` is 0: it
stays on NVLink inside a host.  Gradients are synchronised inside the groups (the deltas of TP
pairs) and across them, which is all that the fabric carries.  A GPU sends as many octets of
gradients as it has weights, and its partner is on the same rail: the spines stay idle.

Here, over UET: 95.8 us for eight epochs.  13,312 octets went forward and 16,384 backward, all over
NVLink, and the 3,072 octets of gradients over the fabric.  ``groups=6`` takes 24 GPUs in six
hosts: 173.0 us, and 15,360 octets of gradients over the fabric; over RoCEv2 172.9 us.
""",
    Parameters=_parameters(
        TrainingParameters,
        widths=_widths(4, 8, 2),
        groups=parameter(2, COUNT, help="data-parallel groups of four GPUs"),
        micro_batches=parameter(2, COUNT, help="micro-batches of a mini-batch"),
    ),
    fabric=lambda given: f"rail_clos:hosts={max(2, given.groups)},gpus_per_host=4,spines=1",
    trials=_three_d,
    COLUMNS=(
        *training_trial.COLUMNS[:8],
        TableColumn("forward_bytes", "forward", "(B)", 8),
        TableColumn("backward_bytes", "backward", "(B)", 8),
        TableColumn("crossing_bytes", "crossing", "(B)", 8),
        TableColumn("gradient_bytes", "gradients", "(B)", 9),
        *training_trial.COLUMNS[8:],
    ),
)


def _replicas(
    name: str,
    model: ConvolutionalModel | RecurrentModel,
    parameters: Any,
    topology: Topology,
    seed: int,
) -> list[Trial]:
    training = ReplicaTraining(
        name=name,
        model=model,
        topology=topology,
        samples=parameters.samples,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        gradient_ns=parameters.gradient_time,
        seed=seed,
    )
    return [training.trial(parameters)]


convolutional = TrainingScenario(
    sheet="""\
Convolutional: a small convolutional network trains with data parallelism, with real numbers.

::

    image (6x6) -> 3x3 kernels -> tanh -> 3x3 kernels -> tanh -> dense -> outputs, loss
                   4 channels             4 channels

    GPU 0   images 1-4   gradient --+
    GPU 1   images 5-8   gradient --+-- ring AllReduce --> the sum at every GPU, a step
    ...                             |
    GPU n   ...          gradient --+

Traffic: every GPU has all weights and a mini-batch of its own.  It computes the gradient of its
mini-batch.  A ring AllReduce over all GPUs in rank order adds the gradients, and each GPU steps its
copy of the weights.  A GPU sends 2(n-1)/n of the gradient in each epoch.

The training on one GPU adds
the gradients of the mini-batches in the order of the ring.  Inputs and first weights are drawn by
the seed; targets are the outputs of the same network with other weights.

What should be seen: the kernels are few numbers that are used at every place of the image, so that
the gradient is small beside the computing.  Krizhevsky (arXiv 1404.5997) takes data parallelism for
convolutions for that reason.  With ``gradient_time=0`` the time is that of the AllReduces alone.
""",
    Parameters=_parameters(
        LearningParameters,
        # Two kernels of 3x3 leave a point of an image of 5x5.
        side=parameter(6, replace(COUNT, minimum=5), help="points of a side of the image"),
        channels=parameter(4, COUNT, help="kernels of each convolution"),
        outputs=parameter(2, COUNT, help="outputs of the network"),
        gradient_time=parameter(10_000, TIME, help=_GRADIENT_TIME),
    ),
    fabric=_two_by_two,
    trials=lambda given, topology, seed: _replicas(
        "convolutional",
        ConvolutionalModel(given.side, given.channels, given.outputs),
        *(given, topology, seed),
    ),
)

recurrent = TrainingScenario(
    sheet="""\
Recurrent: a small recurrent network trains with data parallelism, with real numbers.

::

    x(1)      x(2)      x(3)            x(T)
     | U       | U       | U             | U
    h(1) -V-> h(2) -V-> h(3) -V-> ... -> h(T) -W-> outputs, loss

    GPU 0   sequences 1-4   gradient --+
    GPU 1   sequences 5-8   gradient --+-- ring AllReduce --> the sum at every GPU, a step
    ...                                |
    GPU n   ...             gradient --+

Traffic: every GPU has all weights and a mini-batch of its own.  It computes the gradient of its
mini-batch by back-propagation through time.  A ring AllReduce over all GPUs in rank order adds the
gradients, and each GPU steps its copy of the weights.  A GPU sends 2(n-1)/n of the gradient in each
epoch.

The training on one GPU adds
the gradients of the mini-batches in the order of the ring.  Inputs and first weights are drawn by
the seed; targets are the outputs of the same network with other weights.

What should be seen: the same matrices are used at every time, so that the gradient does not grow
with the length of the sequences, and the computing does.  With ``gradient_time=0`` the time is that
of the AllReduces alone.
""",
    Parameters=_parameters(
        LearningParameters,
        width=parameter(4, COUNT, help="numbers of a vector of the sequence"),
        hidden=parameter(6, COUNT, help="numbers of the hidden state"),
        length=parameter(5, COUNT, help="vectors of a sequence"),
        outputs=parameter(2, COUNT, help="outputs of the network"),
        gradient_time=parameter(10_000, TIME, help=_GRADIENT_TIME),
    ),
    fabric=_two_by_two,
    trials=lambda given, topology, seed: _replicas(
        "recurrent",
        RecurrentModel(given.width, given.hidden, given.length, given.outputs),
        *(given, topology, seed),
    ),
)


def _attention(parameters: Any, topology: Topology, seed: int) -> list[Trial]:
    training = AttentionTraining(
        topology=topology,
        hidden=parameters.hidden,
        heads=parameters.heads,
        blocks=parameters.blocks,
        length=parameters.length,
        sequences=parameters.samples,
        parts=parameters.parts,
        epochs=parameters.epochs,
        rate=parameters.learning_rate,
        block_ns=parameters.block_time,
        seed=seed,
    )
    return [learning_trial("attention", training, parameters)]


attention = TrainingScenario(
    sheet="""\
Attention: the heads of attention blocks are divided over tensor-parallel GPUs.

::

             GPU 0: heads 1, 2               GPU 1: heads 3, 4
           +--------------------+          +--------------------+
    X ---> | softmax(kq) v, O   |   X ---> | softmax(kq) v, O   |
           +--------------------+          +--------------------+
                    | a part of the outputs          |
                    +------ ring AllReduce ----------+
           X + sum of all heads            X + sum of all heads     the next block

Traffic: every GPU has the whole sequences and an equal number of heads of every block.  It computes
what its heads add to the sequences, and a ring AllReduce adds the parts of all GPUs. Each GPU adds
the sum to the sequences.  Backward each GPU has a part of the delta of a block's inputs, which
another AllReduce adds up; the first block needs none.  Each GPU has the gradients of its own heads,
and steps them without communication.  This is how Megatron-LM divides attention (Shoeybi et al.,
arXiv 1909.08053, section 3).

The training on one GPU adds
the outputs of the heads in the order of the ring.  Inputs and first weights are drawn by the seed;
targets are the outputs of the same blocks with other weights.

What should be seen: 2 x ``blocks`` - 1 AllReduces for each epoch, one after the other, of sequences
x hidden x length x 4 octets.  None of them can be hidden behind computing.  With more GPUs the
computing of each becomes shorter, and the AllReduces become longer by their hops.  A block takes
1/``parts`` of ``block_time`` forward and twice that backward.

Here, over UET: 298 us for eight epochs, of which 240 are computing; 294 us with four GPUs, of which
120 are computing.
""",
    Parameters=_parameters(
        LearningParameters,
        hidden=parameter(8, COUNT, help="numbers of a token"),
        heads=parameter(4, COUNT, help="heads of a block"),
        blocks=parameter(2, COUNT, help="attention blocks, one after the other"),
        length=parameter(6, COUNT, help="tokens of a sequence"),
        samples=parameter(2, COUNT, help="sequences of a batch"),
        parts=parameter(2, COUNT, help="GPUs over which the heads are divided"),
        rate=parameter(10_000, DECIMAL, help="learning rate"),
        block_time=parameter(
            10_000, TIME, help="time of all heads of a block forward; backward takes twice that"
        ),
    ),
    fabric=lambda given: _apart(given.parts),
    trials=_attention,
)

#: The models, each a scenario by its own name.
MODELS = (
    *("fnn", "attention", "convolutional", "data_parallel", "model_parallel"),
    *("pipeline_parallel", "recurrent", "tensor_parallel", "three_d"),
)

neural_training = replace(
    fnn,
    sheet="Neural_training: a neural network trains with real numbers, divided over GPUs as its "
    "model says",
    Parameters=_parameters(
        fnn.Parameters,
        model=parameter(
            "fnn",
            choices=MODELS,
            help="what trains; each has parameters of its own, as uetemu run MODEL names them",
        ),
    ),
    INSTEAD={"model": {name: (name, {}) for name in MODELS}},
)
