"""The thread that owns a transport: connects, reconnects, subscribes again, publishes retained messages again.

Other threads hand it closures through one deque and wake it; events go out through the subclass. It holds no lock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from asteroid_core.errors import AsteroidError, BrokerError
from asteroid_core.link.base import (
    Connected,
    Disconnected,
    Publication,
    Refused,
    Subscription,
    Transport,
    WillFactory,
)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
IDLE_POLL = 1.0
"""Longest sleep of the thread; every wake, message and deadline ends it sooner."""


class LinkLoop:
    """Base of the links; a subclass says what to do with events and messages (``Handler``) and when to wake (``work``).

    Args:
        transport: moves the messages; from ``start`` on it belongs to the thread.
        will: makes the last will of each connection.
        name: of the thread.
    """

    def __init__(self, transport: Transport, will: WillFactory | None, name: str) -> None:
        self._transport = transport
        self._will = will
        self._commands: deque[Callable[[], None]] = deque()
        self._subscriptions: dict[str, Subscription] = {}
        self._remembered: dict[str, Publication] = {}
        self._stopping: bool | None = None
        """None while running, else whether the end is graceful."""
        self._pause = FIRST_PAUSE
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: BaseException | None = None
        """What ended the thread before its time: a bug, shown by ``stats`` and raised by the next call."""

    def _start(self, check: Callable[[], object] = lambda: None) -> None:
        """Make the first connection in the caller's thread, so that its error reaches the caller; then start."""
        try:
            self._transport.connect(self, self._will)
            check()
        except BaseException:
            self._transport.close(graceful=True)
            raise
        self._thread.start()

    def _call(self, command: Callable[[], None]) -> None:
        if self.failure is not None:
            raise AsteroidError(
                f"The link's thread has ended: {self.failure}.", "Restart the process."
            ) from self.failure
        if self._stopping is not None:
            raise AsteroidError("The link is closed.", "This is a mistake in the program: open a new one.")
        self._commands.append(command)
        self._transport.wake()

    def _run(self) -> None:
        try:
            while self._stopping is None:
                self._drain()
                now = time.monotonic()
                if not self._transport.connected:
                    self._reconnect(now)
                wait = min(self.work(now), IDLE_POLL)
                if not self._transport.connected:
                    wait = max(0.0, min(wait, self._retry_at - now))
                self._transport.poll(0.0 if self._commands else wait)
            self._drain()
        except BaseException as error:
            self.failure = error
            self.on_event(Disconnected(f"The link's thread ended: {error!r}."))
            raise
        finally:
            self._transport.close(bool(self._stopping))

    def _drain(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _reconnect(self, now: float) -> None:
        if now < self._retry_at:
            return
        try:
            self._transport.connect(self, self._will)
        except BrokerError:
            # The owner was told when the connection broke; it is told again when it is back.
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._retry_at = time.monotonic() + self._pause

    def connected_again(self, event: Connected) -> None:
        """Restore what the broker may have forgotten; called by subclasses from ``on_event``."""
        self._pause = FIRST_PAUSE
        self._retry_at = 0.0
        if self._subscriptions:
            self._transport.subscribe(tuple(self._subscriptions.values()))
        if not event.session:
            for publication in self._remembered.values():
                self._transport.publish(publication)

    def subscribe(self, *subscriptions: Subscription) -> None:
        """Subscribe now and after each reconnect."""

        def command() -> None:
            self._subscriptions.update({s.filter: s for s in subscriptions})
            if self._transport.connected:
                self._transport.subscribe(subscriptions)

        self._call(command)

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        retain: bool = False,
        *,
        remember: bool | None = None,
        response_topic: str | None = None,
        correlation: bytes | None = None,
        expiry: int | None = None,
    ) -> None:
        """Queue a message; never blocks.

        Args:
            topic: its topic.
            payload: its bytes.
            qos: 0 or 1.
            retain: whether the broker keeps it.
            remember: publish it again after a reconnect to a broker without our session; by default if retained. A
                status that carries the connection's id is better published by its owner at each ``Connected``.
            response_topic: where an answer is expected.
            correlation: what the answer must carry.
            expiry: seconds after which the broker drops it.
        """
        publication = Publication(topic, (payload,), qos, retain, qos > 0, response_topic, correlation, expiry)
        keep = retain if remember is None else remember

        def command() -> None:
            if keep and payload:
                self._remembered[topic] = publication
            else:
                self._remembered.pop(topic, None)
            self._transport.publish(publication)

        self._call(command)

    def ready(self, timeout: float) -> bool:
        """Wait until all subscriptions so far are in force at the broker; return whether they are.

        MQTT keeps nothing for who subscribes later: call this before telling others that they may send.
        """
        return self._wait_until(self._transport.subscribed, timeout)

    def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Ask the thread until it says yes; it answers after all commands that were given before."""
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._call(lambda: answers.put(self._transport.connected and condition()))
            try:
                if answers.get(timeout=left):
                    return True
            except queue.Empty:
                return False
            time.sleep(min(0.002, left))
        return False

    def close(self, graceful: bool = True) -> None:
        """End the link; a graceful end means that the broker does not publish the will."""
        if self._stopping is None:
            self._stopping = graceful
            if self._thread.is_alive():
                self._transport.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout=10.0)

    def work(self, now: float) -> float:
        """Do what is due and return the seconds until something is due again."""
        return IDLE_POLL

    def on_event(self, event: Connected | Disconnected | Refused) -> None:
        """Something happened to the connection."""
        raise NotImplementedError

    def on_message(
        self,
        topic: str,
        payload: memoryview,
        retain: bool,
        response_topic: str | None = None,
        correlation: bytes | None = None,
    ) -> None:
        """A message came in."""
        raise NotImplementedError
