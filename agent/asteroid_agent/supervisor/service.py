"""The supervisor's shell: one thread that owns the state, one inbox, and the effects carried out.

MQTT, waiting threads, signal handlers only put into the inbox. Timers are deadlines on which the inbox is read.
"""

from __future__ import annotations

import heapq
import logging
import queue
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asteroid_agent.supervisor import events as ev
from asteroid_agent.supervisor.children import WORKER, Children, Ended
from asteroid_agent.supervisor.decide import decide
from asteroid_agent.supervisor.state import State
from asteroid_agent.supervisor.uplink import Uplink
from asteroid_agent.worker.config import WorkerConfig
from asteroid_core.errors import AsteroidError, BrokerError
from asteroid_core.link import base
from asteroid_core.wire import topics
from asteroid_core.wire.messages import Telemetry, encode

FLUSH_S = 2.0
"""Time that the last messages have to reach the broker."""
LONGEST_STALL_S = 60.0
"""The link's thread may be this long in one attempt to connect (name resolution without a network); then it is dead."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
LOW_MEMORY = 0.05
"""Part of the memory below which a process that was killed was perhaps killed for memory."""

log = logging.getLogger("asteroid.agent")


class Notifier(Protocol):
    """The service manager."""

    @property
    def watchdog_s(self) -> float | None:
        """Seconds within which it wants a sign of life; None if it wants none."""

    def ready(self, status: str) -> None:
        """We serve."""

    def status(self, text: str) -> None:
        """One line about what goes on."""

    def stopping(self, status: str) -> None:
        """We are about to end."""

    def watchdog(self) -> None:
        """A sign of life."""


@dataclass(frozen=True)
class Parts:
    """What a supervisor is made of.

    Attributes:
        broker: where the broker is.
        state: the first state: name, what the owner lends, intervals.
        configure: makes what a worker is told at its start.
        telemetry: measures this device.
        notifier: the service manager.
        worker: program and arguments of a worker process.
    """

    broker: base.Broker
    state: State
    configure: Callable[[ev.Launch], WorkerConfig]
    telemetry: Callable[[], Telemetry]
    notifier: Notifier
    worker: Sequence[str] = WORKER


class Service:
    """Runs a supervisor until it exits."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._state = parts, parts.state
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, ev.TimerKind, int]] = []
        self._armed: dict[tuple[ev.TimerKind, int], int] = {}
        self._counter = 0
        self._memory_low = False
        self._children = Children(parts.configure, self._inbox.put, lambda: self._memory_low, parts.worker)
        self._uplink: Uplink | None = None
        self._exit: ev.Exit | None = None
        self._next_sign = 0.0

    @property
    def state(self) -> State:
        """What the supervisor knows now; for tests and for looking at, the owner's thread changes it."""
        return self._state

    def signal(self, name: str) -> None:
        """Ask to end; may be called by a signal handler."""
        self._inbox.put(ev.Signalled(name))

    def run(self) -> ev.Exit:
        """Serve until asked to end; returns how to exit.

        Raises:
            BrokerError: the broker refuses us, or its settings are wrong. One that cannot be reached is waited for.
        """
        try:
            self._connect()
            while self._exit is None:
                self._turn()
        finally:
            self._children.close()
            if self._uplink is not None:
                if self._exit is not None and self._exit.code == 0:
                    self._uplink.flush(FLUSH_S)
                # Without a graceful end the broker publishes our last will, as it should when this is a crash.
                self._uplink.close(graceful=self._exit is not None)
        return self._exit

    def _connect(self) -> None:
        """Make the first connection; a device may start before its broker does."""
        pause, told = FIRST_PAUSE_S, ""
        while self._exit is None:
            uplink = Uplink(self._parts.broker, self._state.agent, self._inbox)
            try:
                uplink.open()
            except BrokerError as error:
                if not _may_pass(error):
                    raise
                if str(error) != told:
                    told = str(error)
                    log.warning("%s Trying again.", error)
                self._parts.notifier.status(error.what)
            else:
                self._uplink = uplink
                return
            self._take(time.monotonic() + pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _take(self, until: float) -> None:
        """Deal with what is in the inbox until then."""
        while self._exit is None and (item := self._get(until - time.monotonic())) is not None:
            self._deal(item)

    def _get(self, timeout: float) -> Any:
        """Return what came into the inbox within the time, else None."""
        try:
            return self._inbox.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None

    def _turn(self) -> None:
        """Deal with one event, or with the timer that is due first."""
        now = time.monotonic()
        self._sign_of_life(now)
        due = self._timers[0][0] if self._timers else now + LONGEST_STALL_S
        if self._parts.notifier.watchdog_s is not None:
            due = min(due, self._next_sign)
        if (item := self._get(due - now)) is not None:
            self._deal(item)
        while self._exit is None and self._timers and self._timers[0][0] <= time.monotonic():
            _, stamp, kind, number = heapq.heappop(self._timers)
            if self._armed.get((kind, number)) == stamp:
                del self._armed[kind, number]
                self._step(ev.TimerFired(kind, number))

    def _sign_of_life(self, now: float) -> None:
        """Tell the watchdog that we live, as long as the link's thread does too."""
        wanted = self._parts.notifier.watchdog_s
        if wanted is None or now < self._next_sign:
            return
        self._next_sign = now + wanted / 2
        if self._uplink is not None and now - self._uplink.beat > LONGEST_STALL_S:
            log.error("the connection's thread has not moved for %.0f s; no sign of life", now - self._uplink.beat)
            return
        self._parts.notifier.watchdog()

    def _deal(self, item: Any) -> None:
        """Translate what came into the inbox."""
        match item:
            case base.Message():
                self._step(ev.Message(item.topic, item.payload, item.retain))
            case base.Connected():
                self._step(ev.Connected(item.connection, item.session))
            case base.Disconnected():
                self._disconnected(item)
            case base.Refused():
                self._refused(item)
            case Ended():
                if (exited := self._children.reap(item.number)) is not None:
                    self._step(exited)
            case ev.Signalled():
                self._step(item)
            case _:
                raise TypeError(f"{item!r} is no event of a supervisor")

    def _refused(self, item: base.Refused) -> None:
        """Nobody would see a device whose birth the broker refuses; the rest is logged.

        Raises:
            BrokerError: the birth was refused.
        """
        if item.topic == topics.build("agent_status", agent=self._state.agent):
            raise BrokerError(
                item.reason,
                f"Its MQTT user must be named {self._state.agent}, under the rules of broker_config/acl.",
            )
        log.error("%s", item.reason)

    def _disconnected(self, item: base.Disconnected) -> None:
        uplink = self._uplink
        if uplink is not None and uplink.failure is not None:
            raise AsteroidError(item.reason, "This is a bug; the log says more.") from uplink.failure
        if uplink is not None and item.reason == uplink.taken_over_sentence:
            self._step(ev.TakenOver(item.reason))
        else:
            self._step(ev.Disconnected(item.reason))

    def _step(self, event: ev.Event) -> None:
        self._state, effects = decide(self._state, event, time.monotonic())
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Publish():
                # The owner says retained things again at each connection itself: they carry the connection's id.
                self._link.publish(effect.topic, effect.payload, effect.qos, effect.retain, remember=False)
            case ev.Subscribe():
                self._link.subscribe(*(base.Subscription(text) for text in effect.filters))
            case ev.Spawn():
                self._step(self._children.spawn(effect.number, effect.launch))
            case ev.Kill():
                self._children.kill(effect.number, effect.hard)
            case ev.Arm():
                self._counter += 1
                self._armed[effect.kind, effect.number] = self._counter
                due = time.monotonic() + effect.after
                heapq.heappush(self._timers, (due, self._counter, effect.kind, effect.number))
            case ev.Measure():
                self._measure()
            case ev.Notify():
                self._notify(effect)
            case ev.Log():
                log.log(logging.getLevelName(effect.level.upper()), "%s", effect.text)
            case ev.Exit():
                self._exit = effect

    @property
    def _link(self) -> Uplink:
        assert self._uplink is not None, "an effect that needs the broker before the first connection"
        return self._uplink

    def _measure(self) -> None:
        telemetry = self._parts.telemetry()
        total, available = telemetry.memory_total_mb, telemetry.memory_available_mb
        self._memory_low = total is not None and available is not None and available < LOW_MEMORY * total
        topic = topics.build("agent_telemetry", agent=self._state.agent)
        self._link.publish(topic, encode(telemetry), qos=0, remember=False)

    def _notify(self, effect: ev.Notify) -> None:
        if effect.ready:
            self._parts.notifier.ready(effect.text)
        elif effect.stopping:
            self._parts.notifier.stopping(effect.text)
        else:
            self._parts.notifier.status(effect.text)


def _may_pass(error: BrokerError) -> bool:
    """Whether waiting helps: the network or the broker is not up yet. A wrong certificate or password stays wrong."""
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, (ssl.SSLCertVerificationError, FileNotFoundError))
