"""Network namespaces on a bridge, with shaped links: nothing of it touches the machine's own interfaces.

Every host has a namespace of its own and one link to a switch, which is a bridge in yet another namespace. Both ends of
a link are shaped (token bucket), so it has its rate in either direction.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

SUBNET = "10.77.0"
HZ_BURST_S = 0.004
"""A token bucket is filled in steps; it has to hold what the rate brings in one of the coarser ones."""
LATENCY = "100ms"


class TestbedError(Exception):
    """The machine did not do what was asked; carries what it said."""

    __test__ = False


@dataclass(frozen=True)
class Host:
    """A machine of the emulated network.

    Attributes:
        name: of the host.
        namespace: its network namespace.
        address: its IPv4 address.
        port: its interface on the switch.
    """

    name: str
    namespace: str
    address: str
    port: str


def run(*command: str) -> str:
    """Run a command and return its output.

    Raises:
        TestbedError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Network:
    """A switch and the hosts on it.

    Args:
        prefix: begins the name of every namespace.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.switch = f"{prefix}switch"
        self.hosts: dict[str, Host] = {}

    def open(self) -> None:
        """Make the switch."""
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")

    def add(self, name: str, mbit: float | None) -> Host:
        """Connect a host by a link of that speed, each direction; None: as fast as it goes."""
        number = len(self.hosts) + 1
        host = Host(name, f"{self._prefix}{name}", f"{SUBNET}.{number}", f"p{number}")
        run("ip", "netns", "add", host.namespace)
        self.hosts[name] = host
        run("ip", "-n", host.namespace, "link", "set", "lo", "up")
        run(
            "ip", "link", "add", "eth0", "netns", host.namespace, "type", "veth",
            "peer", "name", host.port, "netns", self.switch,
        )  # fmt: skip
        run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        run("ip", "-n", host.namespace, "link", "set", "eth0", "up")
        run("ip", "-n", self.switch, "link", "set", host.port, "master", "br0")
        run("ip", "-n", self.switch, "link", "set", host.port, "up")
        self.set_rate(name, mbit)
        return host

    def set_rate(self, name: str, mbit: float | None) -> None:
        """Give a host's link another speed, each direction."""
        host = self.hosts[name]
        for namespace, interface in ((host.namespace, "eth0"), (self.switch, host.port)):
            if mbit is None:
                done = subprocess.run(
                    ["tc", "-n", namespace, "qdisc", "del", "dev", interface, "root"], capture_output=True, check=False
                )
                if done.returncode and b"handle of zero" not in done.stderr and b"No such file" not in done.stderr:
                    raise TestbedError(f"tc qdisc del {interface}: {done.stderr.decode().strip()}")
                continue
            burst = max(int(mbit * 1e6 / 8 * HZ_BURST_S), 16_000)
            run(
                "tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf",
                "rate", f"{int(mbit * 1000)}kbit", "burst", str(burst), "latency", LATENCY,
            )  # fmt: skip

    def cut(self, name: str) -> None:
        """Pull the cable of a host."""
        run("ip", "-n", self.switch, "link", "set", self.hosts[name].port, "down")

    def mend(self, name: str) -> None:
        """Put it back."""
        run("ip", "-n", self.switch, "link", "set", self.hosts[name].port, "up")

    def close(self) -> None:
        """Remove every namespace; processes in them must have ended."""
        for namespace in (*(host.namespace for host in self.hosts.values()), self.switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        self.hosts.clear()


def namespaces() -> list[str]:
    """Names of all network namespaces of this machine."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]


def processes_in(namespace: str) -> list[int]:
    """Ids of the processes in a namespace."""
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]
