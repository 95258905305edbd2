"""Shapes of transformer language models: layers, widths, heads, experts, and what follows of them.

A layer is that of Llama 3 (Grattafiori et al., arXiv 2407.21783). Attention has h x h weights for
queries and outputs, and h x (KV heads x head size) for keys and for values. A gated feed-forward
network has three h x f matrices, and there are two norms of h weights.  The embedding and the
output head have V x h weights each.  A mixture of experts has a feed-forward network for each
expert, and a router of h weights for each (Jiang et al., arXiv 2401.04088).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The sizes of a model; a dense one has one expert."""

    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    vocabulary: int
    experts: int = 1
    experts_per_token: int = 1

    @property
    def head_size(self) -> int:
        """Return the elements of one head."""
        return self.hidden // self.heads

    @property
    def key_value_size(self) -> int:
        """Return the elements of the keys of one token in one layer; its values have as many."""
        return self.key_value_heads * self.head_size

    @property
    def attention_weights(self) -> int:
        """Return the weights of a layer's attention."""
        return 2 * self.hidden * (self.hidden + self.key_value_size)

    @property
    def feed_forward_weights(self) -> int:
        """Return the weights of one expert's feed-forward network in a layer."""
        return 3 * self.hidden * self.feed_forward

    @property
    def router_weights(self) -> int:
        """Return the weights of a layer's router; a dense model has none."""
        return self.experts * self.hidden if self.experts > 1 else 0

    @property
    def layer_weights(self) -> int:
        """Return the weights of a layer, all experts and the norms included."""
        experts = self.experts * self.feed_forward_weights
        return self.attention_weights + experts + self.router_weights + 2 * self.hidden

    @property
    def active_layer_weights(self) -> int:
        """Return the weights of a layer that one token is multiplied with."""
        experts = self.experts_per_token * self.feed_forward_weights
        return self.attention_weights + experts + self.router_weights

    @property
    def head_weights(self) -> int:
        """Return the weights of the output head; the embedding has as many."""
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        """Return all weights of the model."""
        return self.layers * self.layer_weights + 2 * self.head_weights + self.hidden

    def key_value_bytes(self, element_bytes: int = 2) -> int:
        """Return the octets of the keys and values that one token leaves in one layer."""
        return 2 * self.key_value_size * element_bytes


#: Llama 3 (arXiv 2407.21783, table 3) and Mixtral 8x7B (arXiv 2401.04088, table 1), by name.
SHAPES = {
    one.name: one
    for one in (
        TransformerShape(
            name="8b",
            layers=32,
            hidden=4096,
            feed_forward=14336,
            heads=32,
            key_value_heads=8,
            vocabulary=128256,
        ),
        TransformerShape(
            name="70b",
            layers=80,
            hidden=8192,
            feed_forward=28672,
            heads=64,
            key_value_heads=8,
            vocabulary=128256,
        ),
        TransformerShape(
            name="405b",
            layers=126,
            hidden=16384,
            feed_forward=53248,
            heads=128,
            key_value_heads=8,
            vocabulary=128256,
        ),
        TransformerShape(
            name="8x7b",
            layers=32,
            hidden=4096,
            feed_forward=14336,
            heads=32,
            key_value_heads=8,
            vocabulary=32000,
            experts=8,
            experts_per_token=2,
        ),
    )
}
