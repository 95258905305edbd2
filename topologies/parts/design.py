"""The form of a topology design: parameters with kind, default and help, and a drawing.

A design is a frozen dataclass derived from :class:`Design`.  Its fields are the single statement of
its parameters; callers may give each as text with its unit, as an integer in base units, or leave
it out.  Its docstring's first line is what a list of designs shows.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from topologies.model import SCALE_UP_SHAPES, SWITCH, ScaleUp, Topology, TopologyError
from topologies.parts.design_parameters import (
    AUTO,
    COUNT,
    MTU,
    RATE,
    SIZE,
    TIME,
    ParameterKind,
    TextKind,
    WordKind,
)
from topologies.parts.scale_up_products import PRODUCTS
from topologies.registry import Registry


def parameter(
    default: int | str | None, kind: ParameterKind | WordKind | TextKind, help: str
) -> Any:
    """A field of a design; the default None stands for what the design computes (``auto``)."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help})


@dataclass(frozen=True)
class Parameter:
    """One parameter of a design, as its field declares it."""

    name: str
    kind: ParameterKind | WordKind | TextKind
    default: str
    help: str


@dataclass(frozen=True)
class CatalogueEntry:
    """A design of the catalogue; ``parameters`` is its class, whose fields they are."""

    parameters: type[Design]

    @property
    def name(self) -> str:
        """The design's ``NAME``."""
        return self.parameters.NAME

    @property
    def meaning(self) -> str:
        """The first line of the design's docstring."""
        return self.parameters.summary()

    @cached_property
    def fields(self) -> Mapping[str, Parameter]:
        """The parameters by name."""
        return {
            item.name: Parameter(
                item.name,
                item.metadata["kind"],
                AUTO if item.default is None else str(item.default),
                item.metadata["help"],
            )
            for item in dataclasses.fields(self.parameters)
        }


DESIGNS: Registry[CatalogueEntry] = Registry("topology", "topologies.designs", first="rail_clos")


@dataclass(frozen=True, kw_only=True)
class Design:
    """The base of all designs; making one reads every parameter.

    Raises TopologyError, which names the parameter, for a value out of range.
    """

    NAME: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                read = field.metadata["kind"].read(field.name, value)
                object.__setattr__(self, field.name, read)

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the design's docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    def refuse_idle(self, needs: Mapping[str, str]) -> None:
        """Raise TopologyError where a parameter is given and ``needs`` what the fabric has not.

        What states the default changes nothing either, and may; so may ``auto``.
        """
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), field.metadata["kind"]
            if field.name not in needs or value in (None, AUTO):
                continue
            if field.default is None or value != kind.read(field.name, field.default):
                raise TopologyError(
                    f"{field.name} is {kind.format(value)} and changes nothing: it needs "
                    f"{needs[field.name]}; leave it out otherwise"
                )

    def topology(self) -> Topology:
        """The fabric.  Raises TopologyError where parameters contradict each other."""
        raise NotImplementedError


D = TypeVar("D", bound=Design)


def register(design: type[D]) -> type[D]:
    """Enter ``design`` into the catalogue by its ``NAME``; stands above ``@dataclass``."""
    DESIGNS.register(CatalogueEntry(design), 2)
    return design


def with_defaults(**defaults: int | str) -> Callable[[type[D]], type[D]]:
    """Makes of a subclass a design of its own: that of its base, with other ``defaults``."""

    def changed(design: type[D]) -> type[D]:
        fields = {field.name: field for field in dataclasses.fields(design)}
        for name, default in defaults.items():
            setattr(design, name, parameter(default, **fields[name].metadata))
            design.__annotations__[name] = fields[name].type
        return dataclass(frozen=True, kw_only=True)(design)

    return changed


@dataclass(frozen=True, kw_only=True)
class CabledDesign(Design):
    """A design with the parameters of cables, ports and servers that all designs share."""

    nic_rate: int = parameter("400Gbps", RATE, "rate of each NIC port")
    nic_delay: int = parameter("600ns", TIME, "delay of a GPU - switch link")
    uplink_delay: int = parameter("600ns", TIME, "delay of a link between switches")
    mtu: int = parameter("9000", MTU, "IP MTU of every link")
    buffer: int = parameter("1MiB", SIZE, "egress queue of every port")
    scale_up_rate: int = parameter("3.6Tbps", RATE, "scale-up rate per GPU, each way")
    scale_up_latency: int = parameter("700ns", TIME, "scale-up latency")
    scale_up: str = parameter(
        SWITCH,
        WordKind((*SCALE_UP_SHAPES, *PRODUCTS)),
        "scale-up by a switch, by links to all, or to two others; or a product (uetemu list)",
    )
    scale_up_links: int | None = parameter(
        None, COUNT, "scale-up links of each GPU that work; default the product's"
    )
    scale_up_hosts: int = parameter(1, COUNT, "servers that share a scale-up network")

    @property
    def scale_up_network(self) -> ScaleUp:
        """Return the scale-up network of the design's servers.

        Raises TopologyError for links that the product has not, or a rate besides that of its.
        """
        product = PRODUCTS.get(self.scale_up)
        if product is None:
            self.refuse_idle({"scale_up_links": f"a product: scale_up={' or '.join(PRODUCTS)}"})
            return ScaleUp(
                rate_bps=self.scale_up_rate,
                latency_ns=self.scale_up_latency,
                shape=self.scale_up,
                hosts=self.scale_up_hosts,
            )
        self.refuse_idle({"scale_up_rate": "scale_up=switch, mesh or ring, as a product has its"})
        links = self.scale_up_links or product.links
        if links is None or (product.links is not None and links > product.links):
            has = "as many as its maker gave it" if product.links is None else product.links
            raise TopologyError(
                f"scale_up_links is {'left out' if links is None else links}, and a GPU with "
                f"scale_up={self.scale_up} has {has}; write for example scale_up_links=4"
            )
        return ScaleUp(
            rate_bps=links * product.link_bps,
            latency_ns=self.scale_up_latency,
            shape=product.shape,
            hosts=self.scale_up_hosts,
            links=links,
            sums=product.sums,
        )
