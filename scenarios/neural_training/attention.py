"""Attention: the heads of attention blocks are divided over tensor-parallel GPUs.

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

Measured: the time of the training, its ideal, and the losses.  A training on one GPU in numpy gives
the reference: losses of all epochs, and weights of every GPU at the end, to the bit. It adds
the outputs of the heads in the order of the ring.  Inputs and first weights are drawn by the seed;
targets are the outputs of the same blocks with other weights.

What should be seen: 2 x ``blocks`` - 1 AllReduces for each epoch, one after the other, of sequences
x hidden x length x 4 octets.  None of them can be hidden behind computing.  With more GPUs the
computing of each becomes shorter, and the AllReduces become longer by their hops.  A block takes
1/``parts`` of ``block_time`` forward and twice that backward.

Here, over UET: 298 us for eight epochs, of which 240 are computing; 294 us with four GPUs, of which
120 are computing.

``show=steps`` prints the numbers of the first epoch, and draws who sends to whom when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emulator.scenario import Outcome, Trial, parameter
from scenarios.workloads.network.attention_training import AttentionTraining
from scenarios.workloads.network.training_trial import COLUMNS as COLUMNS
from scenarios.workloads.network.training_trial import (
    DECIMAL,
    LearningParameters,
    learning_measures,
    learning_trial,
)
from topologies.model import Topology
from topologies.parts.design_parameters import COUNT, TIME


@dataclass(frozen=True, kw_only=True)
class Parameters(LearningParameters):
    """The parameters of ``attention``."""

    hidden: int = parameter(8, COUNT, help="numbers of a token")
    heads: int = parameter(4, COUNT, help="heads of a block")
    blocks: int = parameter(2, COUNT, help="attention blocks, one after the other")
    length: int = parameter(6, COUNT, help="tokens of a sequence")
    samples: int = parameter(2, COUNT, help="sequences of a batch")
    parts: int = parameter(2, COUNT, help="GPUs over which the heads are divided")
    rate: int = parameter(10_000, DECIMAL, help="learning rate")
    block_time: int = parameter(
        10_000, TIME, help="time of all heads of a block forward; backward takes twice that"
    )


def topology(parameters: Parameters) -> str:
    """Return a fabric with one GPU in each host: a host for each part."""
    return f"rail_clos:hosts={max(2, parameters.parts)},gpus_per_host=1,spines=1"


def schedules(parameters: Parameters, topology: Topology, seed: int) -> list[Trial]:
    """Return the trials, one for each row of the table."""
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


def measures(
    parameters: Parameters, topology: Topology, trial: Trial, outcome: Outcome
) -> Mapping[str, object]:
    """Return the values of a row beyond time and ideal."""
    return learning_measures(topology, trial, outcome)
