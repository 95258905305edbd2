"""Sizes of language models: how many GPUs hold one, and what a layer computes and sends.

The layers are those of Llama 3 (Grattafiori et al., arXiv 2407.21783, table 3): attention with
h x h weights for queries and outputs, h x 1024 for the eight heads of keys and of values, and a
gated feed-forward network of three h x f matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Octets of a number of 16 bits.
NUMBER_BYTES = 2
_KEY_VALUE_SIZE = 8 * 128


@dataclass(frozen=True)
class ModelSize:
    """A model of ``parameters`` in all, as it is called, and the sizes of its layers."""

    name: str
    parameters: int
    layers: int
    hidden: int
    feed_forward: int

    @property
    def weight_bytes(self) -> int:
        """Return the octets of all weights in 16 bits."""
        return self.parameters * NUMBER_BYTES

    @property
    def attention_weights(self) -> int:
        """Return the weights of a layer's attention."""
        return 2 * self.hidden * (self.hidden + _KEY_VALUE_SIZE)

    @property
    def feed_forward_weights(self) -> int:
        """Return the weights of a layer's feed-forward network."""
        return 3 * self.hidden * self.feed_forward

    def gpus(self, memory: int, state_bytes: int = 0, activation_bytes: int = 0) -> int:
        """Return the least number of GPUs with ``memory`` octets each that hold the model.

        Each weight has ``state_bytes`` beside it (gradient, optimiser).  Each GPU keeps
        ``activation_bytes`` of its memory for activations.
        """
        octets = self.parameters * (NUMBER_BYTES + state_bytes)
        return -(-octets // (memory - activation_bytes))

    def activation_bytes(self, tokens: int) -> int:
        """Return the octets of ``tokens`` between two layers, in 16 bits."""
        return tokens * self.hidden * NUMBER_BYTES


MODELS = {
    one.name: one
    for one in (
        ModelSize("8b", 8 * 10**9, 32, 4096, 14336),
        ModelSize("70b", 70 * 10**9, 80, 8192, 28672),
        ModelSize("405b", 405 * 10**9, 126, 16384, 53248),
    )
}
