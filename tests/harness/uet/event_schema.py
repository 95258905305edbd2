"""Events of a trace against their JSON Schema, by the library jsonschema."""

from functools import cache

from jsonschema import Draft202012Validator, ValidationError

from uet.eventlog.schema import json_schema
from uet.eventlog.sequence import Event


@cache
def _validators() -> dict[str, Draft202012Validator]:
    """One validator for each event by name: the whole schema would try all of them in turn."""
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return {
        each["properties"]["name"]["const"]: Draft202012Validator(each) for each in schema["oneOf"]
    }


def violations(event: Event) -> list[ValidationError | str]:
    """Return what is wrong with an event; its name alone if there is no such event."""
    name = str(event.get("name"))
    if name not in _validators():
        return [name]
    return list(_validators()[name].iter_errors(event))
