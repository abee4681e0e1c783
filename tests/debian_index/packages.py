"""The machine's Debian package index as documents."""

import re
import subprocess

_DEPENDENCY = re.compile(r"^(?P<name>[^\s:(]+)(?::(?P<arch>\S+))?\s*(?:\((?P<op><<|<=|=|>=|>>)\s*(?P<version>[^)]+)\))?$")
_MAINTAINER = re.compile(r"^(?P<name>.*?)\s*<(?P<email>[^>]*)>$")
_RELATIONS = {
    "Depends": "depends", "Pre-Depends": "preDepends", "Recommends": "recommends", "Suggests": "suggests",
    "Conflicts": "conflicts", "Provides": "provides",
}
_TEXTS = {"Section": "section", "Priority": "priority", "Architecture": "architecture", "Homepage": "homepage",
          "Description": "summary", "Source": "source", "SHA256": "sha256"}


def dependency(text):
    """`name:arch (op version)` as a document that holds what was said."""
    found = _DEPENDENCY.match(text.strip())
    if not found:
        return {"name": text.strip()}
    return {key: value for key, value in found.groupdict().items() if value is not None}


def relation(text):
    """`a | b (>= 1), c` as [{anyOf: [a, b]}, {anyOf: [c]}]."""
    return [{"anyOf": [dependency(part) for part in group.split("|")]} for group in text.split(",") if group.strip()]


def document(fields):
    """One paragraph of the index as a document with nested arrays for its dependencies."""
    result = {"_id": f"{fields['Package']}_{fields['Version']}_{fields['Architecture']}", "name": fields["Package"],
              "version": fields["Version"], "size": int(fields.get("Size", 0))}
    if "Installed-Size" in fields:
        result["installedSize"] = int(fields["Installed-Size"])
    for field, name in _TEXTS.items():
        if field in fields:
            result[name] = fields[field]
    if found := _MAINTAINER.match(fields.get("Maintainer", "")):
        result["maintainer"] = found.groupdict()
    if "Tag" in fields:
        result["tags"] = [tag.strip() for tag in fields["Tag"].split(",") if tag.strip()]
    for field, name in _RELATIONS.items():
        if field in fields:
            result[name] = relation(fields[field])
    return result


def read_index(limit=None):
    """All packages that apt knows of, each once, in the index's order."""
    text = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    packages = {}
    for paragraph in text.split("\n\n"):
        if limit and len(packages) >= limit:
            break
        fields, last = {}, None
        for line in paragraph.splitlines():
            if line[:1] in (" ", "\t") and last:
                fields[last] += " " + line.strip()
            elif ":" in line:
                last, _, value = line.partition(":")
                fields[last] = value.strip()
        if "Package" in fields:
            made = document(fields)
            packages.setdefault(made["_id"], made)
    return list(packages.values())
