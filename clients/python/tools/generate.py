#!/usr/bin/env python3
"""Writes src/quorate/types.py and src/quorate/api.py from the OpenAPI document.

    tools/generate.py            write them
    tools/generate.py --check    exit with 1 where they differ from what would be written
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import textwrap
from typing import Any, Iterator

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "quorate"
DOCUMENT = HERE.parents[2] / "openapi" / "quorate-v1.json"
NOTE = "Generated from openapi/quorate-v1.json by tools/generate.py: do not edit."
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def python_type(schema: dict[str, Any], prefix: str = "") -> str:
    if "$ref" in schema:
        return prefix + schema["$ref"].rpartition("/")[2]
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return "Union[" + ", ".join(python_type(one, prefix) for one in schema[key]) + "]"
    kind = schema.get("type")
    if isinstance(kind, list):  # nullable
        kind = next(one for one in kind if one != "null")
    if kind == "array":
        return f"list[{python_type(schema['items'], prefix)}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {python_type(values, prefix)}]" if isinstance(values, dict) else "dict[str, Any]"
    return PLAIN.get(str(kind), "Any")


def docstring(text: str, indent: str) -> list[str]:
    text = " ".join(text.split()).replace("\\", "\\\\")
    lines = textwrap.wrap(text, 100 - len(indent))
    if len(lines) == 1 and len(lines[0]) + len(indent) < 94:
        return [f'{indent}"""{lines[0]}"""']
    return [f'{indent}"""', *(indent + line for line in lines), f'{indent}"""']


def typed_dict(name: str, schema: dict[str, Any]) -> Iterator[str]:
    fields, required = schema.get("properties", {}), set(schema.get("required", ()))
    base = "TypedDict"
    both = required and required != set(fields)
    if both:
        yield f"class _{name}(TypedDict):"
        for field in (field for field in fields if field in required):
            yield from member(field, fields[field])
        yield ""
        yield ""
        base = f"_{name}"
    yield f"class {name}({base}{'' if required and not both else ', total=False'}):"
    yield from docstring(schema.get("description", name), "    ")
    yield ""
    for field in fields:
        if not both or field not in required:
            yield from member(field, fields[field])
    yield ""
    yield ""


def member(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"    {name}: {python_type(schema)}"
    if "description" in schema:
        yield from docstring(schema["description"], "    ")


def types(document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    yield from (f'"""Bodies and answers of the API. {NOTE}"""', "")
    yield from ("from __future__ import annotations", "", "from typing import Any, TypedDict, Union", "")
    yield f"__all__ = {['NAME', 'VERSION', *sorted(schemas)]!r}"
    yield from ("", f"VERSION = {document['info']['version']!r}", '"""The version of the document."""')
    pattern = schemas["AcquireMultilock"]["properties"]["names"]["items"]["pattern"]
    yield from (f"NAME = {pattern!r}", '"""The pattern of a name, which has at most 200 characters."""', "", "")
    for name in sorted(schemas):
        if "properties" in schemas[name]:
            yield from typed_dict(name, schemas[name])
        else:
            yield from (f"{name} = {python_type(schemas[name])}", "", "")


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """All of /v1 that answers with JSON: event streams are no calls."""
    for path, methods in sorted(document["paths"].items()):
        for verb, operation in methods.items():
            if path.startswith("/v1/") and "application/json" in operation["responses"]["200"].get("content", {}):
                yield path, verb.upper(), operation


def method(path: str, verb: str, operation: dict[str, Any], word: str) -> Iterator[str]:
    content = operation["responses"]["200"]["content"]["application/json"]
    answer = python_type(content["schema"], "types.")
    parameters = [p for p in operation.get("parameters", ()) if p["in"] in ("path", "query")]
    arguments = ["self"]
    arguments += [f"{p['name']}: {python_type(p['schema'])}" for p in parameters if p["in"] == "path"]
    body = operation.get("requestBody")
    if body:
        kind = python_type(body["content"]["application/json"]["schema"], "types.")
        arguments.append(f"body: {kind}" if body.get("required") else f"body: Optional[{kind}] = None")
    query = [p["name"] for p in parameters if p["in"] == "query"]
    if query:
        arguments.append("*")
        arguments += [
            f"{p['name']}: Optional[{python_type(p['schema'])}] = None" for p in parameters if p["in"] == "query"
        ]
    yield f"    {word}def {snake(operation['operationId'])}("
    yield from (f"        {argument}," for argument in arguments)
    yield f"    ) -> {answer}:"
    yield from docstring(operation.get("summary") or operation["operationId"], "        ")
    names = [p["name"] for p in parameters if p["in"] == "path"]
    call = [repr(verb), repr(path), "{" + ", ".join(f"{n!r}: {n}" for n in names) + "}"]
    call.append("{" + ", ".join(f"{n!r}: {n}" for n in query) + "}")
    call.append("body" if body else "None")
    yield f"        answer = {'await ' if word else ''}self._call({', '.join(call)})"
    yield f"        return cast({answer!r}, answer)"
    yield ""


def api(document: dict[str, Any]) -> Iterator[str]:
    yield from (f'"""Every call of the API as it is, typed. {NOTE}"""', "")
    yield from ("from __future__ import annotations", "")
    yield from ("from typing import Any, Awaitable, Callable, Optional, cast", "", "from . import types", "")
    yield from ('__all__ = ["Api", "AsyncApi"]', "")
    for name, word, call in (("Api", "", "Any"), ("AsyncApi", "async ", "Awaitable[Any]")):
        yield from ("", f"class {name}:")
        yield from docstring("The calls, each tried at one server after the other; see `Client.api`.", "    ")
        yield ""
        yield f"    def __init__(self, call: Callable[[str, str, dict[str, Any], dict[str, Any], Any], {call}]) -> None:"
        yield from ("        self._call = call", "")
        for path, verb, operation in operations(document):
            yield from method(path, verb, operation, word)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    document = json.loads(DOCUMENT.read_text())
    stale = []
    for name, lines in (("types.py", types(document)), ("api.py", api(document))):
        text = "\n".join(lines).rstrip() + "\n"
        if not check:
            (PACKAGE / name).write_text(text)
        elif not (PACKAGE / name).is_file() or (PACKAGE / name).read_text() != text:
            stale.append(name)
    if stale:
        print(f"{', '.join(stale)}: not what the OpenAPI document says; run tools/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
