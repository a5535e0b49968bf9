"""What all verbs share: options, the two streams (data to stdout, narration to stderr), JSON, exit codes."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from asteroid_coordinator.settings import Settings, load_settings
from asteroid_core.errors import AsteroidError

Example = tuple[str, str]
"""A command line, and what it is for."""


@dataclass
class Ui:
    """Where a verb writes, and the settings that it was given.

    Attributes:
        settings: broker, login, state directory.
        json: print one JSON document on stdout instead of text.
        quiet: no narration.
        verbose: more narration.
        out: stdout, for data.
        err: stderr, for narration, progress and errors.
    """

    settings: Settings
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    out: Console = field(default_factory=lambda: console(stderr=False))
    err: Console = field(default_factory=lambda: console(stderr=True))

    @property
    def live(self) -> bool:
        """Whether moving pictures make sense: a person at a terminal, who did not ask for silence."""
        return self.err.is_terminal and not self.quiet and not self.json

    def data(self, value: Any) -> None:
        """Print one JSON document on stdout."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()

    def result(self, value: Any, *renderables: RenderableType) -> None:
        """Print data: as JSON if asked for, else for people."""
        if self.json:
            self.data(value)
        else:
            self.show(*renderables)

    def show(self, *renderables: RenderableType) -> None:
        """Print data for people on stdout."""
        for item in renderables:
            self.out.print(item, soft_wrap=isinstance(item, str))

    def say(self, text: str) -> None:
        """Narrate on stderr."""
        if not self.quiet:
            self.err.print(text, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Narrate on stderr if asked to be verbose."""
        if self.verbose and not self.quiet:
            self.err.print(text, markup=False, soft_wrap=True, style="dim")


def console(*, stderr: bool) -> Console:
    """Return a console that knows NO_COLOR, TERM=dumb and pipes, and lets no text be taken for markup or emoji."""
    return Console(stderr=stderr, highlight=False, emoji=False)


def error_text(error: AsteroidError) -> str:
    """Both sentences of an error, for stderr."""
    return f"asteroid: {error.what} {error.remedy}".strip()


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "broker": (
        Annotated[
            str | None,
            typer.Option("--broker", "-b", metavar="HOST[:PORT]", help="The MQTT broker; else $ASTEROID_BROKER."),
        ],
        None,
    ),
    "username": (Annotated[str | None, typer.Option("--username", metavar="NAME", help="MQTT user.")], None),
    "password_file": (
        Annotated[Path | None, typer.Option("--password-file", metavar="FILE", help="Its first line is the password.")],
        None,
    ),
    "ca": (
        Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="The broker's CA (PEM); turns TLS on.")],
        None,
    ),
    "state_dir": (
        Annotated[Path | None, typer.Option("--state-dir", metavar="DIR", help="Jobs, checkpoints, models.")],
        None,
    ),
    "json": (Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")], False),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="No narration on stderr.")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", "-v", help="More narration on stderr.")], False),
}


def with_common(function: Callable[..., None]) -> Callable[..., None]:
    """Give a verb ``function(ui, ...)`` the common options; it receives them as a ``Ui``."""

    @wraps(function)
    def run(**values: Any) -> None:
        common = {name: values.pop(name) for name in _OPTIONS}
        flags = {name: common.pop(name) for name in ("json", "quiet", "verbose")}
        function(Ui(load_settings(**common), **flags), **values)

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + shared
    run.__dict__.pop("__wrapped__", None)
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run


def add_verb(app: typer.Typer, name: str, function: Callable[..., None], examples: tuple[Example, ...]) -> None:
    """Register a verb; its help shows the summary, then the examples, then the options."""
    summary = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    width = max(len(line) for line, _ in examples)
    shown = "\n".join(f"  {line:<{width}}   {meaning}" for line, meaning in examples)
    rest = "\n\n".join(part for part in summary[1:] if not part.startswith(("Args:", "Raises:")))
    text = f"{summary[0]}\n\n\b\nExamples:\n{shown}" + (f"\n\n{rest}" if rest else "")
    app.command(name, help=text, short_help=summary[0])(with_common(function))
