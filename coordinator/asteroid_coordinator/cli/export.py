"""``asteroid export``: the trained model as one safetensors file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from asteroid_coordinator.cli.common import Ui
from asteroid_coordinator.cli.session import maybe_coordinator
from asteroid_coordinator.cli.stop import JobName
from asteroid_coordinator.store import StateDir, Store
from asteroid_core.errors import InputError
from asteroid_core.ids import job_id

EXAMPLES = (
    ("asteroid export digits", "write digits.safetensors here"),
    ("asteroid export digits -o model.safetensors", "or there"),
    ("python -c 'import safetensors.torch as s; s.load_model(my_model, \"digits.safetensors\")'", "then use it"),
)

Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: JOB.safetensors here.")]


def export(ui: Ui, job: JobName, output: Output = None) -> None:
    """Write the model of a job that is done.

    The file has the model's own parameter names and loads with strict=True. It lies with the coordinator: on another
    machine this command says where.
    """
    name = job_id(job)
    target = output or Path(f"{name}.safetensors")
    with maybe_coordinator(ui) as session:
        if session is not None:
            source = Path(str(session.client.request("export", job=name).data["path"]))
        else:
            source = _of_store(ui, name)
    if not source.is_file():
        raise InputError(
            f"The model of {name} lies at {source} on the coordinator's machine, not on this one.",
            f"Copy it from there, for example: scp COORDINATOR:{source} {target}",
        )
    if target.exists() and target.samefile(source):
        raise InputError(f"{target} is the coordinator's own copy of the model.", "Give another file with -o.")
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}.", "Give another file with -o.") from None
    ui.result({"job": name, "file": str(target), "bytes": target.stat().st_size}, str(target))
    ui.say(f"Wrote the model of {name} ({target.stat().st_size / 1e6:.1f} MB).")


def _of_store(ui: Ui, name: str) -> Path:
    """Path of the model in the state directory of this machine."""
    layout = StateDir(ui.settings.state_dir)
    if not layout.database.is_file():
        raise InputError(
            f"There is no coordinator on the broker at {ui.settings.address}, and no job in {layout.root}.",
            "Start one with `asteroid coordinator`, or give its --state-dir.",
        )
    with Store(layout.root, read_only=True) as store:
        store.spec(name)
    path = layout.job(name) / "model.safetensors"
    if not path.is_file():
        raise InputError(f"The job {name!r} has no model file yet.", f"asteroid status {name}")
    return path
