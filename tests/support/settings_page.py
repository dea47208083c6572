"""docs/settings.md, made from `streams/settings.py`: names and defaults from the structs, words from the comments."""

import ast
import inspect
from typing import Any, Literal, get_args, get_origin

import msgspec

from streams import settings as module
from streams.settings import Settings, variable

HEAD = """# Settings

Every setting by subject, with its environment variable, default and purpose. In `uniscale.yaml` its name is the
variable's without `UNISCALE_`, in lower case. [Operating](operating.md#settings) explains precedence;
`python -m streams settings` prints those in force. Times are in seconds and sizes in bytes unless the name
says otherwise.

`WRITE_GOLDEN=1 python -m pytest tests/streams/test_settings.py` writes this page again from `streams/settings.py`.
"""


def page() -> str:
    """Return the whole page."""
    sections = {"": Settings} | {
        field.name: field.type
        for field in msgspec.structs.fields(Settings)
        if isinstance(field.type, type) and issubclass(field.type, module.Section)
    }
    return "\n".join([HEAD, *(_section(name, kind) for name, kind in sections.items())])


def _section(name: str, kind: type[module.Section]) -> str:
    plain, told = kind(), comments(kind)
    title = inspect.cleandoc(kind.__doc__ or "").splitlines()[0].rstrip(".") if name else "The process"
    lines = [f"## {title}", "", "| variable | default | what it is |", "|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        value = getattr(plain, field.name)
        if not isinstance(value, module.Section):
            words = _cell(told[field.name] + _choices(field.type))
            lines.append(f"| `{variable(field.encode_name)}` | {_shown(value)} | {words} |")
    return "\n".join([*lines, ""])


def comments(kind: type[module.Section]) -> dict[str, str]:
    """Return the comment directly above each field of a section; empty where there is none."""
    lines, _ = inspect.getsourcelines(kind)
    found = {}
    for node in ast.parse("".join(lines)).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            at = node.lineno - 2
            above: list[str] = []
            while (line := lines[at].strip()).startswith("#"):
                above.insert(0, line.lstrip("# "))
                at -= 1
            found[node.target.id] = " ".join(above)
    return found


def _choices(kind: Any) -> str:
    return f" One of {', '.join(get_args(kind))}." if get_origin(kind) is Literal else ""


def _shown(value: Any) -> str:
    if value in ("", (), {}, None):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")
