"""Virtual time, tasks that wait in it, and one source of chance: everything that happens in a run comes from here.

A task is a greenlet: code that blocks (``queue.get``, ``sleep``) switches back to the loop, which moves time to the
next event. So the product's own blocking code runs unchanged, in one thread, and a seed gives one interleaving.
"""

from __future__ import annotations

import heapq
import itertools
import queue
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")
TRACE = 400
"""Last events that are kept for a report."""


class Event:
    """Something that will be done at a moment, unless it is cancelled."""

    __slots__ = ("cancelled", "do", "when")

    def __init__(self, when: float, do: Callable[[], object]) -> None:
        self.when, self.do, self.cancelled = when, do, False


class Task:
    """Code that may wait; it belongs to a process that may be killed or stalled."""

    def __init__(self, world: World, name: str, run: Callable[[], object]) -> None:
        self.world, self.name = world, name
        self.dying = False
        self.stalled_until = 0.0
        self.children: list[Task] = []
        self.owner: object = world.current.owner if world.current is not None else None
        if world.current is not None:
            world.current.children.append(self)
        self._ticket = 0
        self._run = run
        self._greenlet: greenlet = greenlet(self._body, world.hub)
        world.after(0.0, self._resumer(self._ticket))

    def _body(self) -> None:
        try:
            self._run()
        except GreenletExit:
            return
        except BaseException as error:
            self.world.violate(f"{self.name} ended with {type(error).__name__}: {error}", error)

    def _resumer(self, ticket: int) -> Callable[[], None]:
        def resume() -> None:
            if self.dying or self._greenlet.dead or ticket != self._ticket:
                return
            if self.stalled_until > self.world.now:
                self.world.at(self.stalled_until, resume)
                return
            self.world.current = self
            try:
                self._greenlet.switch()
            finally:
                self.world.current = None

        return resume

    def park(self, until: float | None) -> None:
        """Wait for ``wake``, or until a moment; called by the task itself."""
        if self.dying:
            raise GreenletExit
        assert getcurrent() is self._greenlet
        self._ticket += 1
        event = None if until is None else self.world.at(until, self._resumer(self._ticket))
        self.world.hub.switch()
        if event is not None:
            event.cancelled = True

    def wake(self) -> None:
        """Let it go on; anybody but the task itself."""
        self.world.after(0.0, self._resumer(self._ticket))

    def kill(self) -> None:
        """End it and what it has started where they wait; from the loop only."""
        self.dying = True
        for child in self.children:
            child.kill()
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.throw(GreenletExit)


class World:
    """See the module's header.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.hub = getcurrent()
        self.current: Task | None = None
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.violations: list[str] = []
        self.errors: list[BaseException] = []
        self.steps = 0
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._tasks: list[Task] = []

    def at(self, when: float, do: Callable[[], object]) -> Event:
        """Do something at a moment."""
        event = Event(max(when, self.now), do)
        heapq.heappush(self._events, (event.when, next(self._order), event))
        return event

    def after(self, seconds: float, do: Callable[[], object]) -> Event:
        """Do something after a while."""
        return self.at(self.now + seconds, do)

    def spawn(self, name: str, run: Callable[[], object]) -> Task:
        """Start a task."""
        task = Task(self, name, run)
        self._tasks.append(task)
        return task

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass in a task."""
        assert self.current is not None, "only a task can sleep"
        task, until = self.current, self.now + seconds
        while self.now < until:
            task.park(until)

    def say(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now:9.3f}  {text}")

    def violate(self, text: str, error: BaseException | None = None) -> None:
        """Something that must never happen has happened; the run ends."""
        self.say(f"VIOLATION {text}")
        self.violations.append(text)
        if error is not None:
            self.errors.append(error)

    def run(self, done: Callable[[], bool], until: float) -> None:
        """Go from event to event until ``done``, a violation, or a moment."""
        while self._events and not self.violations and not done():
            when, _, event = heapq.heappop(self._events)
            if event.cancelled:
                continue
            if when > until:
                self.now = until
                return
            self.now = when
            self.steps += 1
            event.do()

    def close(self) -> None:
        """End all tasks, so that nothing of this world is left waiting."""
        for task in self._tasks:
            task.kill()
        self._events.clear()


class Inbox(Generic[T]):
    """A queue as ``queue.SimpleQueue``; who waits, waits in virtual time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[T] = deque()
        self._waiting: Task | None = None

    def put(self, item: T) -> None:
        """Add one."""
        self._items.append(item)
        if self._waiting is not None:
            self._waiting.wake()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the oldest."""
        world = self._world
        until = None if timeout is None else world.now + timeout
        while not self._items:
            if not block or (until is not None and world.now >= until):
                raise queue.Empty
            assert world.current is not None, "only a task can wait"
            self._waiting = world.current
            try:
                world.current.park(until)
            finally:
                self._waiting = None
        return self._items.popleft()

    def get_nowait(self) -> T:
        """Take the oldest, if there is one."""
        return self.get(block=False)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items


class Flag:
    """A ``threading.Event`` in virtual time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False

    def set(self) -> None:
        """Raise it; whoever waits sees it at its next look."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it is raised."""
        return self._set

    def wait(self, timeout: float) -> bool:
        """Wait a while."""
        if not self._set:
            self._world.sleep(timeout)
        return self._set


class Clock:
    """Stands for the module ``time``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Seconds since the begin of the run."""
        return self._world.now

    time = now = monotonic

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._world.sleep(seconds)
