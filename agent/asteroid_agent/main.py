"""Entry of ``asteroid-agent``: settings, logging, signals, and a supervisor that serves until asked to end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from asteroid_agent.logs import setup_logging
from asteroid_agent.settings import FILE, Settings, load_settings
from asteroid_agent.supervisor import capabilities
from asteroid_agent.supervisor.events import Launch
from asteroid_agent.supervisor.service import Parts, Service
from asteroid_agent.supervisor.state import State
from asteroid_agent.supervisor.telemetry import Probe
from asteroid_agent.worker.config import MqttConfig, WorkerConfig
from asteroid_core import __version__
from asteroid_core.errors import AsteroidError, InputError
from asteroid_core.notify import notify, watchdog_interval
from asteroid_core.wire.messages import AgentInfo

log = logging.getLogger("asteroid.agent")

_EPILOG = """examples:
  asteroid-agent                               settings from /etc/asteroid/agent.toml
  asteroid-agent --broker broker.lan           without a settings file
  asteroid-agent --broker broker.lan --name pi-3 --cores 2 --memory-mb 1500

It serves until it gets SIGTERM or Ctrl-C. Exit code 2: a setting is wrong, or the broker refuses us.
"""


class Systemd:
    """Tells systemd how the service is doing; says nothing where there is none."""

    def __init__(self) -> None:
        interval = watchdog_interval()
        self.watchdog_s = interval * 2 if interval is not None else None

    def ready(self, status: str) -> None:
        """We serve."""
        notify(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """One line about what goes on."""
        notify(f"STATUS={text}")

    def stopping(self, status: str) -> None:
        """We are about to end."""
        notify(f"STOPPING=1\nSTATUS={status}")

    def watchdog(self) -> None:
        """A sign of life."""
        notify("WATCHDOG=1")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    out = argparse.ArgumentParser(
        prog="asteroid-agent",
        description="Lend this machine to Asteroid: publish what it is and how it feels, and run workers for jobs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--config", type=Path, metavar="FILE", help=f"settings file (default: {FILE}, if it is there)")
    out.add_argument("--broker", metavar="HOST[:PORT]", help="the broker (else $ASTEROID_BROKER, the file, localhost)")
    out.add_argument("--name", help="name of this device (default: the machine's name)")
    out.add_argument("--username", help="MQTT user")
    out.add_argument("--password-file", type=Path, metavar="FILE", help="its first line is the password")
    out.add_argument("--ca", type=Path, metavar="FILE", help="certificate authority of the broker; turns TLS on")
    out.add_argument("--cores", type=float, metavar="N", help="processor cores to lend (default: all)")
    out.add_argument("--memory-mb", type=int, metavar="MB", help="memory to lend (default: 60 %% of it)")
    out.add_argument("--telemetry-s", type=float, metavar="S", help="seconds between telemetry messages (default: 5)")
    out.add_argument("--log-format", choices=("auto", "text", "journal"), help="how to log (default: auto)")
    out.add_argument("--verbose", action="store_true", default=None, help="log debug messages")
    out.add_argument("--version", action="version", version=f"asteroid-agent {__version__}")
    return out


def worker_config(settings: Settings, info: AgentInfo, launch: Launch) -> WorkerConfig:
    """Return what a worker is told at its start.

    Raises:
        InputError: the password file cannot be read any more.
    """
    broker = settings.link_settings()
    return WorkerConfig(
        agent=settings.name,
        job=launch.job,
        mode=launch.mode,
        model=launch.model,
        data=launch.data,
        dtype=launch.dtype,
        seed=launch.seed,
        session=launch.session,
        generation=launch.generation,
        mqtt=MqttConfig(
            host=broker.host,
            port=broker.port,
            username=broker.username,
            password=broker.password,
            ca_file=broker.ca_file,
            tls=broker.tls,
        ),
        cores=info.cores,
        budget_mb=info.budget_mb,
        scratch_dir=str(settings.lend.scratch_dir) if settings.lend.scratch_dir is not None else None,
        # The supervisor passes a worker's lines on, and takes the priority from their beginning.
        log_format="journal",
    )


def run(arguments: Sequence[str]) -> int:
    """Run the agent; returns the exit code.

    Raises:
        AsteroidError: a setting is wrong, or the broker refuses us.
    """
    given = vars(parser().parse_args(arguments))
    settings = load_settings(given.pop("config"), given)
    setup_logging(settings.log_format, settings.verbose)
    info = capabilities.info(settings.name, capabilities.find(), settings.lend)
    service = Service(
        Parts(
            broker=settings.link_settings(),
            state=State(
                settings.name,
                info,
                grace_s=settings.grace_s,
                leave_s=settings.leave_s,
                telemetry_s=settings.telemetry_s,
            ),
            configure=lambda launch: worker_config(settings, info, launch),
            telemetry=Probe(settings.name),
            notifier=Systemd(),
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, frame: service.signal(signal.Signals(caught).name))
    log.info(
        "asteroid-agent %s, device %s, broker %s, lends %g cores and %d MB, backends: %s",
        __version__,
        settings.name,
        settings.link_settings().address,
        info.cores,
        info.budget_mb,
        ", ".join(f"{name} {version}" for name, version in info.backends.items()) or "none",
    )
    end = service.run()
    if end.code:
        raise InputError(end.what, end.remedy)
    return 0


def main() -> None:
    """Entry point of the ``asteroid-agent`` script."""
    try:
        code = run(sys.argv[1:])
    except AsteroidError as error:
        sys.stderr.write(f"asteroid-agent: {error}\n")
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    sys.stderr.flush()
    os._exit(code)  # the link's thread is a daemon; a worker that hangs in the kernel must not hold the exit


if __name__ == "__main__":
    main()
