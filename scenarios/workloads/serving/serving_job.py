"""A serving job in numbers: what its GPUs compute, how long, and the octets that they exchange.

Times and octets are those of the full-size model, divided by ``scale``.

- Prefill is bound by arithmetic: 2 FLOPs for each active weight and token, and 2 x hidden x
  tokens^2 for the causal attention of a layer, at ``tflops`` a GPU.  Exchanges inside the group are
  part of that efficiency.
- A decode step is bound by memory: it reads the GPU's weights, and the prompt's keys and values, at
  ``bandwidth``.  Requests of one GPU are a batch: they read the weights together, so that
  each takes the time of a step whatever the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from scenarios.workloads.transformer_shapes import TransformerShape

#: Octets of a weight, an activation, and an element of keys and values.
NUMBER_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class ServingJob:
    """A model and how it is served.

    ``prefill`` instances of ``prefill_gpus`` each, and ``decode`` instances of ``decode_gpus``.
    ``by_experts``: decode instances divide the experts, and each request has one of their GPUs for
    its attention; else they divide every layer by tensor parallelism.  ``by_layer``: keys and
    values leave as soon as their layer is computed.  ``slots`` requests decode at a time in an
    instance by tensor parallelism, and in each GPU of an instance by experts.
    """

    shape: TransformerShape
    prompt: int
    output: int
    prefill: int
    prefill_gpus: int
    decode: int
    decode_gpus: int
    by_experts: bool
    by_layer: bool
    slots: int
    tflops: int
    bandwidth_gbps: int
    scale: int

    @property
    def gpus(self) -> int:
        """Return how many GPUs serve."""
        return self.prefill * self.prefill_gpus + self.decode * self.decode_gpus

    @property
    def places(self) -> int:
        """Return how many requests a decode instance takes at a time."""
        return self.slots * (self.decode_gpus if self.by_experts else 1)

    # -- octets ----------------------------------------------------------------------------------

    @property
    def cache_shards(self) -> int:
        """Return over how many GPUs a decode instance divides the keys and values of a request."""
        return 1 if self.by_experts else self.decode_gpus

    @property
    def layer_cache_bytes(self) -> int:
        """Return the octets of a prompt's keys and values in a layer: equal parts for all GPUs."""
        octets = self.prompt * self.shape.key_value_bytes(NUMBER_BYTES) // self.scale
        parts = lcm(self.prefill_gpus, self.cache_shards)
        return octets // parts * parts

    @property
    def cache_bytes(self) -> int:
        """Return the octets of a prompt's keys and values in all layers."""
        return self.shape.layers * self.layer_cache_bytes

    def shared_cache(self, source: int, target: int) -> int:
        """Return the octets of a layer that GPU ``source`` of prefill has for ``target`` of decode.

        Each side divides a layer's keys and values by heads, in the order of its GPUs.
        """
        have, need = (self.layer_cache_bytes // n for n in (self.prefill_gpus, self.cache_shards))
        low = max(source * have, target * need)
        high = min((source + 1) * have, (target + 1) * need)
        return max(0, high - low)

    @property
    def reduce_bytes(self) -> int:
        """Return what each GPU of a decode instance sends to each other one for a token.

        A layer has two AllReduces of a token's hidden state (Shoeybi et al., arXiv 1909.08053), in
        which a GPU sends 2 (n-1)/n of it. Those of all layers are one exchange.  It is one octet at
        least.
        """
        hidden = 2 * self.shape.layers * self.shape.hidden * NUMBER_BYTES
        return max(1, 2 * hidden // (self.decode_gpus * self.scale))

    @property
    def expert_bytes(self) -> int:
        """Return what a token's GPU sends to each of the others, and gets back of them.

        A layer sends the hidden state to each expert of the token. The exchanges of all layers are
        one, spread evenly, of one octet at least.
        """
        copies = self.shape.layers * self.shape.experts_per_token
        return max(1, copies * self.shape.hidden * NUMBER_BYTES // (self.decode_gpus * self.scale))

    # -- times -----------------------------------------------------------------------------------

    @property
    def prefill_ns(self) -> int:
        """Return the time of prefill for one prompt."""
        shape = self.shape
        per_token = 2 * (shape.layers * shape.active_layer_weights + shape.head_weights)
        attention = 2 * shape.layers * shape.hidden * self.prompt**2
        flops = per_token * self.prompt + attention
        return round(flops / (self.tflops * 1000 * self.prefill_gpus * self.scale))

    def layer_ns(self, layer: int) -> int:
        """Return the time of prefill in ``layer``; all of them add up to :attr:`prefill_ns`."""
        layers = self.shape.layers
        return (layer + 1) * self.prefill_ns // layers - layer * self.prefill_ns // layers

    @property
    def before_exchange_ns(self) -> int:
        """Return how long a decode step reads memory before its exchange."""
        shape = self.shape
        if self.by_experts:
            weights = shape.layers * (shape.attention_weights + shape.router_weights)
            return self._reading_ns(weights + shape.head_weights, 1)
        weights = shape.layers * shape.active_layer_weights + shape.head_weights
        return self._reading_ns(weights, self.decode_gpus)

    @property
    def expert_ns(self) -> int:
        """Return how long the experts of a GPU take for a step: all their weights are read."""
        shape = self.shape
        weights = shape.layers * shape.experts * shape.feed_forward_weights
        return round(weights * NUMBER_BYTES / self._rate(self.decode_gpus))

    @property
    def step_ns(self) -> int:
        """Return the computing time of a decode step."""
        return self.before_exchange_ns + (self.expert_ns if self.by_experts else 0)

    def _reading_ns(self, weights: int, gpus: int) -> int:
        context = self.prompt * self.shape.layers * self.shape.key_value_bytes(NUMBER_BYTES)
        return round((weights * NUMBER_BYTES + context) / self._rate(gpus))

    def _rate(self, gpus: int) -> float:
        """Return the octets of the full-size job that ``gpus`` read in a scaled nanosecond."""
        return self.bandwidth_gbps * gpus * self.scale
