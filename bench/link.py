"""Throughput of the tensor link through mosquitto on loopback, beside plain TCP in the same run.

Sender and receiver are two processes, tensors of 4 MiB go at QoS 1, both figures are taken in turn and the median is
shown. Needs a mosquitto binary. The last line printed is the command that repeats the run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from asteroid_core.link.base import Broker, Transport
from asteroid_core.link.bulk import BulkTransport
from asteroid_core.link.paho_link import PahoTransport
from asteroid_core.link.tensors import TensorLink
from asteroid_core.wire.tensor import Kind, Tag, Tensor

MIB = 1 << 20
FIRST_GENERATION = 1
TRANSPORTS: dict[str, type[BulkTransport] | type[PahoTransport]] = {"bulk": BulkTransport, "paho": PahoTransport}


def _open(port: int, name: str, args: argparse.Namespace) -> TensorLink:
    broker = Broker("127.0.0.1", port)
    transport: Transport = TRANSPORTS[args.transport](broker, f"bench-{name}")
    link = TensorLink(transport, broker, "bench", name, chunk_bytes=args.chunk_kib << 10, qos=args.qos)
    link.open().set_generation(FIRST_GENERATION)
    return link


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _receive(port: int, pipe: Connection, args: argparse.Namespace) -> None:
    link = _open(port, "receiver", args)
    pipe.send("ready")
    while (count := pipe.recv()) is not None:
        before = _cpu()
        for _ in range(count):
            received = link.receive(60)
            assert received is not None, link.stats()
            link.release(received)
        pipe.send((time.perf_counter(), _cpu() - before))
    link.close()


def _receive_tcp(pipe: Connection, size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        pipe.send(server.getsockname()[1])
        sock, _ = server.accept()
        buffer = memoryview(bytearray(size))
        while (count := pipe.recv()) is not None:
            for _ in range(count):
                got = 0
                while got < size:
                    got += sock.recv_into(buffer[got:])
            pipe.send((time.perf_counter(), 0.0))


def _broker(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    binary = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if binary is None:
        sys.exit("No mosquitto found. Install it (Debian: apt install mosquitto).")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = directory / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
    process = subprocess.Popen([binary, "-c", str(config)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
            return process, port
        except OSError:
            time.sleep(0.02)
    sys.exit("mosquitto did not open its port.")


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Run both in turn and return the figures."""
    size = args.tensor_mib * MIB
    data = np.frombuffer(os.urandom(size), np.uint8)
    count = max(1, args.run_mib // args.tensor_mib)
    context = multiprocessing.get_context("spawn")
    figures: dict[str, list[float]] = {"link": [], "tcp": []}
    cpu: dict[str, list[float]] = {"sender": [], "receiver": []}
    with tempfile.TemporaryDirectory() as directory:
        process, port = _broker(Path(directory))
        pipe, far = context.Pipe()
        pipe_tcp, far_tcp = context.Pipe()
        peers = [
            context.Process(target=_receive, args=(port, far, args)),
            context.Process(target=_receive_tcp, args=(far_tcp, size)),
        ]
        for peer in peers:
            peer.start()
        pipe.recv()
        link = _open(port, "sender", args)
        tcp = socket.create_connection(("127.0.0.1", pipe_tcp.recv()))
        try:
            for run in range(args.runs + 1):
                pipe_tcp.send(count)
                start = time.perf_counter()
                for _ in range(count):
                    tcp.sendall(data.data)
                end, _ = pipe_tcp.recv()
                tcp_figure = count * size / 1e6 / (end - start)
                pipe.send(count)
                before, start = _cpu(), time.perf_counter()
                for index in range(count):
                    tag = Tag(Kind.ACT, FIRST_GENERATION, run, index)
                    link.send("receiver", tag, Tensor.of_numpy(data))
                end, receiver_cpu = pipe.recv()
                assert link.flush(10), link.stats()
                if run == 0:
                    continue  # warm up
                gigabytes = count * size / 1e9
                figures["tcp"].append(tcp_figure)
                figures["link"].append(gigabytes * 1e3 / (end - start))
                cpu["sender"].append((_cpu() - before) / gigabytes)
                cpu["receiver"].append(receiver_cpu / gigabytes)
            stats = link.stats()
        finally:
            pipe.send(None)
            pipe_tcp.send(None)
            link.close()
            for peer in peers:
                peer.join(10)
            process.terminate()
            process.wait(10)
    return {
        "transport": args.transport,
        "qos": args.qos,
        "chunk_kib": args.chunk_kib,
        "tensor_mib": args.tensor_mib,
        "runs": args.runs,
        "link_mb_s": round(statistics.median(figures["link"])),
        "link_mb_s_all": [round(x) for x in figures["link"]],
        "tcp_mb_s": round(statistics.median(figures["tcp"])),
        "sender_cpu_s_per_gb": round(statistics.median(cpu["sender"]), 2),
        "receiver_cpu_s_per_gb": round(statistics.median(cpu["receiver"]), 2),
        "chunks_again": stats["chunks_again"],
        "command": "python bench/link.py " + " ".join(sys.argv[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=sorted(TRANSPORTS), default="bulk")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=1)
    parser.add_argument("--chunk-kib", type=int, default=256)
    parser.add_argument("--tensor-mib", type=int, default=4)
    parser.add_argument("--run-mib", type=int, default=400, help="sent in one run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    figures = measure(parser.parse_args())
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:>24}  {value}")


if __name__ == "__main__":
    main()
