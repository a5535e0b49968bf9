"""Fields of pydantic models as Markdown: names, types, defaults and the docstrings that stand in the source."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

_PLAIN = frozenset({"BaseModel", "Frozen", "object"})
_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "not fewer than"}


@dataclass(frozen=True)
class FieldText:
    """One field, for people."""

    name: str
    type: str
    default: str
    meaning: str


def field_texts(model: type[BaseModel]) -> list[FieldText]:
    """Fields of a model, those of its bases first."""
    out: list[FieldText] = []
    for cls in reversed(model.__mro__):
        if cls.__name__ not in _PLAIN and issubclass(cls, BaseModel):
            out.extend(_own(cls))
    return out


def markdown(model: type[BaseModel]) -> Iterator[str]:
    """Yield the lines of a table of fields."""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for item in field_texts(model):
        cells = (f"`{item.name}`", f"`{item.type}`", f"`{item.default}`" if item.default else "needed", item.meaning)
        yield "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def sentence(model: type[BaseModel]) -> str:
    """The model's docstring without its list of attributes, as one paragraph with Markdown's single backticks."""
    text = inspect.cleandoc(model.__doc__ or "").split("\nAttributes:")[0]
    return _tidy(text)


def _own(cls: type[BaseModel]) -> Iterator[FieldText]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    if not isinstance(tree, ast.ClassDef):
        return
    listed = dict(_attributes(cls))
    for node, follower in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        name = node.target.id
        info = cls.model_fields.get(name)
        if info is None:
            continue
        meaning = listed.get(name, "")
        if (
            isinstance(follower, ast.Expr)
            and isinstance(follower.value, ast.Constant)
            and isinstance(follower.value.value, str)
        ):
            meaning = follower.value.value
        default, limits = _default(node.value)
        shown = info.alias or name
        yield FieldText(
            shown, ast.unparse(node.annotation), default, "; ".join(p for p in (_tidy(meaning), limits) if p)
        )


def _default(value: ast.expr | None) -> tuple[str, str]:
    """The default as it stands in the source, and the limits in words; ``Field(ge=1)`` has no default."""
    if value is None:
        return "", ""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field"):
        return _shown(value), ""
    words = {k.arg: k.value for k in value.keywords if k.arg}
    limits = ", ".join(f"{_WORDS[k]} {ast.unparse(v)}" for k, v in words.items() if k in _WORDS)
    if "default" in words:
        return _shown(words["default"]), limits
    if "default_factory" in words:
        return {"dict": "{}", "tuple": "()"}.get(ast.unparse(words["default_factory"]), "computed"), limits
    return "", limits


def _shown(value: ast.expr) -> str:
    text = ast.unparse(value)
    if text.endswith("()") and text != "()":
        return "{}"
    return text.replace("'", '"')


def _attributes(cls: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Entries of the section ``Attributes:`` of a Google docstring."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    for entry in re.split(r"\n(?=    \S)", section):
        name, colon, meaning = entry.strip().partition(":")
        if colon:
            yield name, " ".join(meaning.split())


def _tidy(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
