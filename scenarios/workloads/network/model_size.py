"""Sizes of language models: how many GPUs hold one, and what a layer computes and sends."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios.workloads.transformer_shapes import SHAPES, TransformerShape

#: Octets of a number of 16 bits.
NUMBER_BYTES = 2


@dataclass(frozen=True)
class ModelSize:
    """A model of ``parameters`` in all, as it is called, and its shape."""

    shape: TransformerShape
    parameters: int

    @property
    def name(self) -> str:
        """Return the name of the model."""
        return self.shape.name

    @property
    def weight_bytes(self) -> int:
        """Return the octets of all weights in 16 bits."""
        return self.parameters * NUMBER_BYTES

    def gpus(self, memory: int, state_bytes: int = 0, activation_bytes: int = 0) -> int:
        """Return the least number of GPUs with ``memory`` octets each that hold the model.

        Each weight has ``state_bytes`` beside it (gradient, optimiser).  Each GPU keeps
        ``activation_bytes`` of its memory for activations.
        """
        octets = self.parameters * (NUMBER_BYTES + state_bytes)
        return -(-octets // (memory - activation_bytes))

    def activation_bytes(self, tokens: int) -> int:
        """Return the octets of ``tokens`` between two layers, in 16 bits."""
        return tokens * self.shape.hidden * NUMBER_BYTES


MODELS = {
    name: ModelSize(SHAPES[name], billions * 10**9)
    for name, billions in (("8b", 8), ("70b", 70), ("405b", 405))
}
