#!/usr/bin/env python3
"""Makes one OpenAPI document of the YAML files in this folder: JSON, and C++ that holds its bytes. The daemon adds records and
routes to it.

usage: assemble.py OUT.json OUT.cc
"""
import json
import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
DELIMITER = "openapi_json"


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, as it is not for PyYAML."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise SystemExit(f"{node.start_mark.name}:{node.start_mark.line + 1}: twice: {sorted(twice)}")
        return super().construct_mapping(node, deep)


def load(path):
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, UniqueKeyLoader)


def without_anchors(document):
    return {key: value for key, value in document.items() if not key.startswith("x-")}


def merge(into, more, where):
    for key, value in more.items():
        if key not in into:
            into[key] = value
        elif isinstance(into[key], dict) and isinstance(value, dict):
            merge(into[key], value, f"{where}/{key}")
        elif into[key] != value:
            raise SystemExit(f"assemble.py: {where}/{key} stands in two files")


def check_values(value, where):
    """A comma in an unquoted text inside braces cuts it in two: the second half is a key without a value."""
    if value is None:
        raise SystemExit(f"assemble.py: {where} has no value; is a text with a comma not quoted?")
    if isinstance(value, dict):
        for key, inner in value.items():
            check_values(inner, f"{where}/{key}")
    elif isinstance(value, list):
        for inner in value:
            check_values(inner, where)


def references(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def check_references(document):
    for reference in sorted(set(references(document))):
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None and not reference.startswith("#/components/schemas/"):  # these the daemon adds
            raise SystemExit(f"assemble.py: nothing is at {reference}")


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    document = without_anchors(load(HERE / "openapi.yaml"))
    for path in sorted(HERE.glob("*.yaml")):
        if path.name != "openapi.yaml":
            merge(document, without_anchors(load(path)), path.name)
    check_values(document, "")
    check_references(document)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    pathlib.Path(sys.argv[1]).write_text(text, encoding="utf-8")
    pathlib.Path(sys.argv[2]).write_text(
        "// Made by controller/api/openapi/assemble.py.\n"
        '#include "controller/api/openapi_document.h"\n\n'
        "namespace gnomon {\n\n"
        f'const std::string_view kOpenapiSource = R"{DELIMITER}({text}){DELIMITER}";\n\n'
        "}  // namespace gnomon\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
