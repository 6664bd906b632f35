"""JSON schemas that refer to themselves: whether any finite value fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

__all__ = ["has_finite_value"]


def has_finite_value(schema: Any) -> bool:
    """Return whether a value of finite size may fit a schema, by its references within itself.

    False is certain; what is not known here, such as references to other documents, is taken to have one.

    Examples
    --------
    >>> has_finite_value({"$ref": "#"})
    False
    >>> has_finite_value({"type": "array", "items": {"$ref": "#"}})
    True
    >>> has_finite_value({"type": "array", "items": {"$ref": "#"}, "minItems": 1})
    False
    """
    waiting: list[Any] = [schema]
    needs: dict[int, list[list[Any]]] = {}
    while waiting:
        node = waiting.pop()
        if id(node) not in needs:
            # Alternatives, in each of which all nodes must have a finite value.
            needs[id(node)] = list(_alternatives(node, schema))
            waiting += [other for alternative in needs[id(node)] for other in alternative]
    finite: set[int] = set()
    # What a schema needs is found behind it, so that most are known after one round.
    order, before = list(reversed(needs)), -1
    while before < len(finite):
        before = len(finite)
        for node in order:
            if node not in finite and any(all(id(part) in finite for part in every) for every in needs[node]):
                finite.add(node)
    return id(schema) in finite


def _alternatives(node: Any, root: Any) -> Iterator[list[Any]]:
    """What a value of a schema needs: lists of schemas that must all have one, any list will do."""
    if not isinstance(node, dict):
        yield []
        return
    all_of = node.get("allOf")
    needed: list[Any] = list(all_of) if isinstance(all_of, list) else []
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        needed.append(_target(root, reference))
    if "const" not in node and "enum" not in node:
        needed += _parts(node)
    choices = [node[name] for name in ("anyOf", "oneOf") if isinstance(node.get(name), list)]
    if not choices:
        yield needed
    for choice in choices[:1]:
        for one in choice:
            yield [*needed, one]


def _parts(node: dict[str, Any]) -> list[Any]:
    """Schemas of the parts that every value must have."""
    if node.get("type") == "object":
        properties, required = node.get("properties"), node.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            return [properties[name] for name in required if isinstance(name, str) and name in properties]
    least = node.get("minItems", 0)
    if node.get("type") == "array" and isinstance(least, int) and least > 0:
        first = node.get("prefixItems")
        first = first if isinstance(first, list) else []
        return [*first[:least], *([node["items"]] if least > len(first) and "items" in node else [])]
    return []


def _target(root: Any, reference: str) -> Any:
    """What a reference within the document refers to; nothing that is known where there is no such place."""
    found = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found if reference == "#" or reference.startswith("#/") else None
