"""The endpoint's configuration from words: any field of its class, any compatibility switch."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any, Final, TypeVar

from emulator.errors import UserError
from emulator.lab.standalone.script.phrases import check_names, duration, number, switch
from uet.compatibility import REFERENCE_PROVIDER, STANDARD, Compatibility
from uet.config import FepConfig
from uet.congestion.control_registry import tuned_controls
from uet.tss.secure_domain import SecureDomain

#: Besides its switches: what the UEC reference provider is configured to, or cannot do otherwise.
_LIKE_THE_PROVIDER: Final[dict[str, object]] = {
    "payload_mtu": 1_024,
    "mpr": 1,
    "ack_type": "ack",
    "ecn_capable": False,
    "deferrable_threshold": 8_192,
    "rod_reorder": True,
    "drop_network_duplicates": False,
}
PRESETS: Final[dict[str, tuple[Compatibility, dict[str, object]]]] = {
    "standard": (STANDARD, {}),
    "reference-provider": (REFERENCE_PROVIDER, _LIKE_THE_PROVIDER),
}
#: Fields of FepConfig that have an option of their own, and that option.
ELSEWHERE: Final[Mapping[str, str]] = {
    "cc_parameters": "CONTROL.PARAMETER=NUMBER, such as nscc.gamma=0.8,",
    "address": "--address",
    "neighbours": "--peer",
    "domains": "--keys",
    "compatibility": "--compat",
    "mac": "an interface that has it",
}
#: Fields of HcaConfig that something else than ``--set`` sets.
ROCEV2_ELSEWHERE: Final[Mapping[str, str]] = {
    "address": "--address",
    "neighbours": "--peer",
    "connections": "--listen, --connect or --peer",
    "mac": "an interface that has it",
}
C = TypeVar("C")


def compatibility(words: Iterable[str]) -> tuple[Compatibility, dict[str, object]]:
    """Switches, and parameters that go with them, from presets and ``SWITCH=VALUE`` in turn."""
    chosen, parameters = STANDARD, dict[str, object]()
    hints = _hints(Compatibility)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in PRESETS:
            chosen, extra = PRESETS[name]
            parameters |= extra
            continue
        name = name.replace("-", "_")
        check_names([name], [*hints, *PRESETS], "--compat")
        given: Any = _converted(hints[name], name, value if equals else "true", "--compat")
        chosen = replace(chosen, **{name: given})
    return chosen, parameters


def compatible(domains: Iterable[SecureDomain], words: Iterable[str]) -> tuple[SecureDomain, ...]:
    """Return secure domains with a preset's fields.

    The UEC reference provider refuses in clear where it has no PDC, and derives keys from IPv6
    addresses in spite of an SSI.
    """
    if "reference-provider" not in words:
        return tuple(domains)
    return tuple(replace(domain, accept_clear=True, address_in_ipv6_kdf=True) for domain in domains)


def must_suit_ipv6(domains: Iterable[SecureDomain], where: str) -> None:
    """Raise :class:`UserError` for a domain whose packets cannot be sealed over IPv6 (UES 3.7)."""
    for domain in domains:
        if domain.mode == "cluster" or domain.uses_ssi:
            continue
        what, entry = "ssi", '"ssi": NUMBER'
        if domain.mode == "server":
            what, entry = "ssi of its clients", '"clients": {"ADDRESS": NUMBER}'
        raise UserError(
            f"secure domain (sdi {domain.sdi}) has no {what}, which IPv6 needs in {domain.mode}"
            f" mode; add {entry} to its entry in {where}"
        )


def settings(
    words: Iterable[str], kind: type = FepConfig, elsewhere: Mapping[str, str] = ELSEWHERE
) -> dict[str, object]:
    """Fields of a configuration from ``NAME=VALUE``; times are in ns unless they have a unit.

    ``elsewhere`` are those that something else sets.
    """
    hints = _hints(kind)
    values: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name, dot, parameter = name.strip().replace("-", "_").partition(".")
        if name in elsewhere:
            raise UserError(f"--set {name}: use {elsewhere[name]} for it")
        if kind is FepConfig and name in tuned_controls():
            if not equals or not parameter:
                raise UserError(f"--set {name} is for {name}.PARAMETER=NUMBER, each by itself")
            controls = values.setdefault("cc_parameters", {})
            assert isinstance(controls, dict)
            number_of = _converted(float, f"{name}.{parameter}", value.strip(), "--set")
            controls.setdefault(name, {})[parameter] = number_of
            continue
        check_names([name], [item for item in hints if item not in elsewhere], "--set")
        if dot and typing.get_origin(hints[name]) is not Mapping:
            raise UserError(f"--set {name}.{parameter}: {name} has no parameters of its own")
        if not equals:
            raise UserError(f"--set {word} says no value; write {name}=VALUE")
        if typing.get_origin(hints[name]) is Mapping:
            if not parameter:
                raise UserError(f"--set {name} is for {name}.PARAMETER=NUMBER, each by itself")
            inner = values.setdefault(name, {})
            assert isinstance(inner, dict)
            inner[parameter] = _converted(float, f"{name}.{parameter}", value.strip(), "--set")
            continue
        values[name] = _converted(hints[name], name, value.strip(), "--set")
    return values


def endpoint(values: Mapping[str, object]) -> FepConfig:
    """The configuration of a UET endpoint, as :func:`configured` makes it."""
    return configured(FepConfig, values)


def configured(kind: Callable[..., C], values: Mapping[str, object]) -> C:
    """A configuration of some class; what is wrong with it as a :class:`UserError`."""
    try:
        return kind(**values)
    except ValueError as error:
        raise UserError(str(error)) from None


def as_data(config: Any) -> dict[str, Any]:
    """A configuration for a report: everything but keys."""
    data: dict[str, Any] = {}
    for there in fields(config):
        value = getattr(config, there.name)
        if there.name == "domains":
            value = [{"sdi": domain.sdi, "mode": domain.mode, "an": domain.sends_with,
                      "ssi": domain.ssi, "accept_clear": domain.accept_clear,
                      "address_in_ipv6_kdf": domain.address_in_ipv6_kdf}
                     for domain in value]  # fmt: skip
        elif there.name == "compatibility":
            value = asdict(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        data[there.name] = list(value) if isinstance(value, tuple) else value
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _converted(kind: Any, name: str, text: str, where: str) -> Any:
    what = f"{where} {name}"
    if isinstance(kind, types.UnionType):
        if text.lower() in ("none", ""):
            return None
        (kind,) = (option for option in typing.get_args(kind) if option is not type(None))
    if kind is bool:
        return switch(text, what)
    if kind is int:
        if name.endswith("_time") or name == "base_rtt":
            return duration(text, what, plain="ns")
        return number(text, what)
    if kind is float:
        try:
            value = float(text)
        except ValueError:
            raise UserError(f"{what} is {text!r}; give a number") from None
        return int(value) if value.is_integer() else value
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def describe_switches() -> str:
    """The names of all switches, for the help."""
    return ", ".join(_hints(Compatibility))


def describe_settings(kind: type = FepConfig, elsewhere: Mapping[str, str] = ELSEWHERE) -> str:
    """The names of all fields that ``--set`` takes."""
    names = [name for name in _hints(kind) if name not in elsewhere]
    if kind is FepConfig:
        names += [f"{name}.PARAMETER" for name in tuned_controls()]
    return ", ".join(names)
