"""Which devices of a generation are lost, judged from what is heard of them. Pure: every call is told the time.

=========  ========================================================  ===================================================
source     what it finds                                             worst case, from the failure to the verdict
=========  ========================================================  ===================================================
will       the process, the device or its cable is gone              ``will_worst_s``: 1.5 keep-alives, the broker's
                                                                     next look, the will's delay, ``WORD_S``; where a
                                                                     socket closed only the last two
exit       the worker ended; its supervisor says how                 ``EXIT_WORST_S``
heartbeat  the process is frozen but holds its connection (SIGSTOP)  ``HEARTBEAT_WORST_S``; for a lone device
                                                                     ``LONE_WORST_S``
late       it beats and does nothing, and somebody waits for it      ``stall_worst_s``
stuck      all wait for each other: a message is lost                ``stall_worst_s``
=========  ========================================================  ===================================================

The last three hold while ``verdicts`` is called every ``TICK_S`` and the others are heard at least every ``QUIET_S``;
after an outage they count from its end, with ``rejoin_s`` as the first deadline.

**Will and exit.** When a process dies, the broker is often faster than the supervisor, who knows why. So a worker's
will counts after ``WORD_S``, unless the supervisor's word comes before, or the worker on another connection.

**Heartbeat.** The deadline follows the device's own gaps between beats: mean and deviations as in TCP's timer, at least
the longest gap seen, plus ``QUIET_S``. So no gap like earlier ones is an alarm, nor one of ``QUIET_S``, nor either of
them with an outage behind it that was too short to be noticed.

**Nobody is heard.** If no beat of any device came for ``QUIET_S``, it is the broker or our network; if nobody called us
for that long, we were suspended ourselves; and our link may say that it is down. Then nothing is judged, and afterwards
all deadlines start anew. So a device is silent only while another one is heard: two devices are enough. That all freeze
at once is left to wills and exits. A device that is alone has no witness, so it gets a longer deadline, in which our
own link would have found that the broker is gone.

**Late.** Beats say whom a worker waits for, and whether for longer than its patience. From one that is late the waits
lead to those who wait for nobody, the roots. A root that moves is slow, which is no failure; one that beats but has not
moved for longer than the patience with it is lost. If the waits only lead in circles where nobody moves, no device is
to blame. A wait for a name that is no device of the plan (the coordinator, whoever feeds) blames nobody.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from asteroid_core.patience import Patience

BEAT_S = 1.0
"""Between two beats."""
TICK_S = 0.5
"""``verdicts`` is to be called at least so often."""
QUIET_S = 2 * BEAT_S
"""Without any beat for so long, the path is in doubt and not the devices."""
FLOOR_S = 2 * QUIET_S
"""Shortest deadline: a gap of ``QUIET_S`` and an outage of ``QUIET_S`` in a row are no alarm."""
CEILING_S = 10.0
"""Longest deadline while others are heard, and the deadline before ``MEASURED`` gaps are known."""
MEASURED = 8
LONE_S = 20.0
"""Deadline of a lone device: two keep-alives of our own control connection (5 s each), and as much again."""
REJOIN_S = 15.0
"""To reconnect: the link's longest pause, connecting and the broker's answer, 5 s each."""
REJOIN_MAX_S = 120.0
"""Longest pause of TCP between two retransmissions."""
STALL_S = 30.0
"""Shortest patience with a worker that does not move: a swapping device may take that for an instruction."""
STALL_FACTOR = 4.0
SWEEP_S = 6.0
"""mosquitto 2.0 looks for vanished clients every five to six seconds."""

WORD_S = 0.3
"""A worker's will waits so long for the supervisor's better reason, which is a few milliseconds late."""

EXIT_WORST_S = 1.0
"""The supervisor waits for the exit itself; a second is for scheduling and the broker."""
HEARTBEAT_WORST_S = CEILING_S + TICK_S
LONE_WORST_S = LONE_S + TICK_S

Role = Literal["supervisor", "worker"]
Cause = Literal["will", "exit", "heartbeat", "late", "stuck"]


def will_worst_s(keepalive: float, delay: float = 0.0) -> float:
    """Seconds until the broker publishes the will of a vanished client."""
    return 1.5 * keepalive + SWEEP_S + delay + WORD_S


def rejoin_s(outage: float) -> float:
    """Seconds a device has for its first beat after an outage: TCP may pause as long again as the outage took."""
    return min(REJOIN_MAX_S, max(REJOIN_S, outage))


def stall_worst_s(patience: float) -> float:
    """Seconds from the last progress, or from the first late wait if that is later, to a verdict."""
    return patience + 2 * QUIET_S + TICK_S


@dataclass(frozen=True)
class Beat:
    """A sign of life.

    Attributes:
        generation: that the worker works on.
        connection: id of the connection that it comes on.
        count: number of this beat in the life of the process.
        progress: anything that rises with each instruction done and each chunk of a tensor received.
        waiting: whom the present instruction waits for; empty while computing.
        late: whether it has waited for longer than its patience.
    """

    generation: int
    connection: str
    count: int
    progress: int
    waiting: tuple[str, ...] = ()
    late: bool = False


@dataclass(frozen=True)
class Verdict:
    """A device is lost, or (``stuck``) a round is.

    Attributes:
        device: which one; None if none is to blame and the round is to be repeated.
        source: what says so.
        reason: a clause that goes on from "... is lost:".
        worst_s: the longest that this verdict can take after the failure.
    """

    device: str | None
    source: Cause
    reason: str
    worst_s: float


@dataclass
class _Gaps:
    """Times between beats, estimated as TCP estimates round trips."""

    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    longest: float = 0.0

    def add(self, gap: float) -> None:
        if not self.count:
            self.mean, self.deviation = gap, gap / 2
        else:
            self.deviation += (abs(gap - self.mean) - self.deviation) / 4
            self.mean += (gap - self.mean) / 8
        self.count += 1
        self.longest = max(self.longest, gap)

    @property
    def deadline(self) -> float:
        if self.count < MEASURED:
            return CEILING_S
        usual = max(self.mean + 4 * self.deviation, self.longest)
        return min(CEILING_S, max(FLOOR_S, usual + QUIET_S))


@dataclass
class _Device:
    """What is known of one device.

    Attributes:
        heard: when its last beat came, or its deadline began.
        busy: since when it neither waits nor moves.
        still: since when it does not move.
        computing: patience with it while it waits for nobody.
        standing: patience with it in any case.
        allowance: deadline of its next beat instead of the measured one: at the start and after an outage.
        beat: its last one; None until one came since the start or the last outage.
    """

    heard: float
    busy: float
    still: float
    computing: Patience
    standing: Patience
    allowance: float = CEILING_S
    beat: Beat | None = None
    count: int = -1
    gaps: _Gaps = field(default_factory=_Gaps)

    @property
    def deadline(self) -> float:
        return self.allowance if self.beat is None else self.gaps.deadline

    @property
    def waiting(self) -> tuple[str, ...]:
        return () if self.beat is None else self.beat.waiting


class Detector:
    """Judges the devices of one generation after the other."""

    def __init__(self) -> None:
        self._generation = 0
        self._devices: dict[str, _Device] = {}
        self._connections: dict[tuple[str, Role], str] = {}
        self._told: list[Verdict] = []
        self._wills: dict[str, tuple[float, Verdict]] = {}
        self._stuck = False
        self._called = self._heard = 0.0
        self._down: float | None = None

    def start(self, generation: int, devices: Collection[str], now: float, predicted_s: float = 0.0) -> None:
        """Judge these devices from now on, and no other ones; call it when all of them are ready.

        A will that still waits for a better reason is told by the next ``verdicts``, whatever the devices.

        Args:
            generation: of the plan; beats of other ones do not count.
            devices: of the plan.
            now: seconds.
            predicted_s: round time of the plan.
        """
        patience = Patience(max(STALL_S, STALL_FACTOR * predicted_s), STALL_FACTOR, fade=1.0)
        self._generation = generation
        self._devices = {name: _Device(now, now, now, patience, patience) for name in sorted(devices)}
        self._told, self._stuck = [verdict for _, verdict in self._wills.values()], False
        self._wills.clear()
        self._called = self._heard = now

    def born(self, device: str, role: Role, connection: str) -> None:
        """A supervisor or a worker speaks on this connection from now on."""
        if self._connections.get((device, role)) == connection:
            return
        self._connections[device, role] = connection
        if role == "worker":
            self._wills.pop(device, None)
        if role == "worker" and device in self._devices:
            self._devices[device].count = -1  # perhaps another process, which counts from the beginning

    def link(self, now: float, *, up: bool) -> None:
        """Our own connection to the broker broke, or stands again."""
        now = self._at(now)
        if not up:
            self._down = now if self._down is None else self._down
        elif self._down is not None:
            self._anew(now, now - self._down)
            self._down = None

    def beat(self, device: str, beat: Beat, now: float) -> None:
        """Take a sign of life; one of another generation or connection, or an older one, says nothing."""
        now = self._at(now)
        it = self._devices.get(device)
        if it is None or beat.generation != self._generation or beat.count <= it.count:
            return
        if beat.connection != self._connections.get((device, "worker")):
            return
        if now - self._heard > QUIET_S:
            self._anew(now, now - self._heard)
        self._heard = now
        last, it.beat, it.count = it.beat, beat, beat.count
        if last is not None:
            it.gaps.add(now - it.heard)
        it.heard = now
        if last is None or beat.progress != last.progress:
            if last is not None:
                it.standing = it.standing.after(now - it.still)
                it.computing = it.computing.after(now - it.busy)
            it.busy = it.still = now
        elif beat.waiting:
            it.busy = now

    def will(self, device: str, role: Role, connection: str, now: float, keepalive: float, delay: float = 0.0) -> None:
        """A last will came; that of a connection which the device does not speak on any more says nothing."""
        now = self._at(now)
        if self._connections.get((device, role)) != connection or device not in self._devices:
            return
        verdict = Verdict(
            device, "will", f"the broker published the last will of its {role}", will_worst_s(keepalive, delay)
        )
        if role == "worker":
            self._wills.setdefault(device, (now + WORD_S, verdict))
        else:
            self._lose(verdict)

    def exited(self, device: str, reason: str) -> None:
        """Its supervisor says that the worker ended, with exit code, signal or lack of memory in the reason."""
        self._lose(Verdict(device, "exit", reason, EXIT_WORST_S))

    def verdicts(self, now: float) -> tuple[Verdict, ...]:
        """Return what has become certain since the last call; a device comes once in a generation."""
        now = self._at(now)
        for due, verdict in list(self._wills.values()):
            if now >= due:
                self._lose(verdict)
        lone = len(self._devices) == 1
        if self._down is None and (lone or now - self._heard <= QUIET_S):
            self._silent(now, lone)
            self._late()
        told, self._told = tuple(self._told), []
        return told

    def pause(self, now: float) -> float:
        """Seconds until ``verdicts`` is to be called again."""
        return max(0.0, min((due - now for due, _ in self._wills.values()), default=TICK_S))

    def _at(self, now: float) -> float:
        now = max(now, self._called)
        if now - self._called > QUIET_S:
            self._anew(now, now - self._called)
        self._called = now
        return now

    def _anew(self, now: float, outage: float) -> None:
        """Nothing is known of the time of an outage."""
        for it in self._devices.values():
            it.heard, it.beat, it.allowance = now, None, rejoin_s(outage)

    def _lose(self, verdict: Verdict) -> None:
        if verdict.device is None:
            self._stuck = True
        elif self._devices.pop(verdict.device, None) is None:
            return
        else:
            self._wills.pop(verdict.device, None)
        self._told.append(verdict)

    def _silent(self, now: float, lone: bool) -> None:
        for name, it in list(self._devices.items()):
            deadline = max(it.deadline, LONE_S) if lone else it.deadline
            if now - it.heard > deadline:
                others = "" if lone else f", while others were heard {now - self._heard:.1f} s ago"
                reason = f"no sign of life came for {now - it.heard:.1f} s{others}"
                self._lose(Verdict(name, "heartbeat", reason, deadline + TICK_S))

    def _late(self) -> None:
        for name in list(self._devices):
            it = self._devices.get(name)
            if it is None or it.beat is None or not (it.beat.late and it.waiting):
                continue
            chain, inside = self._waits(name)
            roots = [root for root in chain if not self._devices[root].waiting]
            for root in roots:
                self._blame(root, name)
            if not roots and inside and not self._stuck:
                self._circle(chain)

    def _waits(self, name: str) -> tuple[list[str], bool]:
        """Devices that the waits lead to from one of them, and whether they lead to nobody else."""
        chain, inside = [name], True
        for one in chain:  # grows as it goes
            for other in self._devices[one].waiting:
                if other not in self._devices:
                    inside = False
                elif other not in chain:
                    chain.append(other)
        return chain, inside

    def _blame(self, root: str, waiter: str) -> None:
        it = self._devices[root]
        patience, idle = it.computing.seconds, it.heard - it.busy  # what it did since its last beat is not known
        if it.beat is not None and idle > patience:
            reason = f"its worker has done nothing for {idle:.0f} s, and {waiter} waits"
            self._lose(Verdict(root, "late", reason, stall_worst_s(patience)))

    def _circle(self, chain: list[str]) -> None:
        every = [self._devices[name] for name in chain]
        patience = max(it.standing.seconds for it in every)
        still = min(it.heard - it.still for it in every)
        if still > patience:
            reason = f"{', '.join(sorted(chain))} wait for each other, and nothing has moved for {still:.0f} s"
            self._lose(Verdict(None, "stuck", reason, stall_worst_s(patience)))
