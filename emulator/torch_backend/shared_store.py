"""The key-value store that the ranks of a script share, in the order of the fabric's time."""

from __future__ import annotations

from emulator.torch_backend.calls import StoreAnswer, StoreCall


class SharedStore:
    """Values by key, each with the time at which it was set."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, int]] = {}

    def answer(self, asked: StoreCall) -> StoreAnswer | None:
        """Carry ``asked`` out; None if it waits for keys that are not there yet."""
        values, now = self._values, asked.clock_ns
        key = asked.keys[0] if asked.keys else ""
        value: object = None
        match asked.operation:
            case "get" | "wait":
                if any(one not in values for one in asked.keys):
                    return None
                now = max(now, *(values[one][1] for one in asked.keys))
                value = values[key][0]
            case "set":
                values[key] = asked.value, now
            case "add":
                before, since = values.get(key, (b"0", now))
                value = int(before) + asked.amount
                values[key] = str(value).encode(), max(now, since)
            case "check":
                value = all(one in values for one in asked.keys)
            case "delete":
                value = values.pop(key, None) is not None
            case "count":
                value = len(values)
            case "compare":
                old, _, new = asked.value.partition(b"\0")
                if key not in values or values[key][0] == old:
                    values[key] = new, now
                value = values[key][0]
        return StoreAnswer(now, value)
