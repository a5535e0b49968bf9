"""The ``asteroid`` command: registers the verbs, and turns every failure into one sentence and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import typer

from asteroid_coordinator.cli import (
    coordinator,
    demo,
    devices,
    doctor,
    export,
    jobs,
    plan,
    profile,
    resume,
    simulate,
    status,
    stop,
    topics,
    train,
)
from asteroid_coordinator.cli.common import add_verb, console, error_text
from asteroid_core import __version__
from asteroid_core.errors import AsteroidError

INTERRUPTED = 130
"""What shells expect of a program that ended by Ctrl-C: 128 + SIGINT."""
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""click's own base of usage errors; typer carries a copy of click, so it is reached through typer."""

_VERBS = {
    "demo": demo,
    "devices": devices,
    "profile": profile,
    "plan": plan,
    "simulate": simulate,
    "train": train,
    "jobs": jobs,
    "status": status,
    "stop": stop,
    "resume": resume,
    "export": export,
    "topics": topics,
    "doctor": doctor,
    "coordinator": coordinator,
}

_INTRO = """Train one neural network on several small, unequal machines, over MQTT.

\b
Examples:
  asteroid demo                          see it work on this machine, in two minutes
  asteroid devices                       what is on the broker
  asteroid plan examples/digits.toml     who would train what
  asteroid train examples/digits.toml    train it
  asteroid doctor                        when something is wrong

`asteroid VERB --help` begins with examples. The broker is --broker, else $ASTEROID_BROKER, else host and port in
~/.config/asteroid/cli.toml or /etc/asteroid/coordinator.toml, else localhost:1883.
"""


class Ended(BaseException):
    """Somebody asked this process to end; not an Exception, so that only clean-up stands in its way.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def build() -> typer.Typer:
    """Put the command together."""
    app = typer.Typer(help=_INTRO, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=True)

    @app.callback()
    def start(
        version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_version),
    ) -> None:
        del version  # the option acts by itself

    for name, module in _VERBS.items():
        add_verb(app, name, getattr(module, name), module.EXAMPLES)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"asteroid {__version__}")
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors are sentences on stderr."""
    try:
        code = build()(list(arguments) or ["--help"], standalone_mode=False, prog_name="asteroid")
    except AsteroidError as error:
        _complain(error_text(error))
        return error.exit_code
    except Ended as ended:
        _complain(f"asteroid: ended by {signal.Signals(ended.number).name}.")
        return 128 + ended.number
    except (KeyboardInterrupt, typer.Abort):
        _complain("asteroid: interrupted.")
        return INTERRUPTED
    except _CLICK_ERROR as error:
        return _usage(error)
    except BrokenPipeError:
        # The reader of our output has gone (``| head``): say nothing, and keep Python from flushing into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the ``asteroid`` script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else nohup, or whoever started us, wants it ignored
            signal.signal(number, _end)
    sys.exit(run(sys.argv[1:]))


def _end(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``: a broker, agents or a coordinator of ours must not outlive us."""
    del frame
    for again in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(again, signal.SIG_IGN)  # a second one must not cut the clean-up short
    raise Ended(number)


def _complain(text: str) -> None:
    console(stderr=True).print(text, markup=False, soft_wrap=True)


def _usage(error: Exception) -> int:
    """One sentence for a wrong command line, and how to see the right one."""
    message = getattr(error, "format_message", lambda: str(error))().strip()
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "asteroid"
    ending = "" if message.endswith((".", "?", "!")) else "."
    _complain(f"asteroid: {message}{ending} See `{path} --help`.")
    return 2


if __name__ == "__main__":
    main()
