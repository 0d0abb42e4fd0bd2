"""llama.cpp's own server, as the package xllamacpp carries it, in a process of its own.

Run as a program it serves a GGUF on a free port, prints the address and ends when its input does.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTEXT = 2048  # tokens of each of the places


@contextmanager
def llama_cpp_server(
    gguf: Path, *, places: int = 2, context: int = CONTEXT, template: str = ""
) -> Iterator[str]:
    """The base URL of a server on `gguf`, with another chat template where one is given."""
    command = [sys.executable, __file__, str(gguf), str(places), str(context), template]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("http"), f"the server did not start: {address!r}"
            yield f"{address}/v1"
        finally:
            server.stdin.close()
            server.wait(timeout=60)


def serve(gguf: str, places: str, context: str = str(CONTEXT), template: str = "") -> None:
    """Serve until the input ends."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.model_alias = {"smollm2"}
    params.n_gpu_layers = 0
    params.n_parallel = int(places)
    params.n_ctx = int(places) * int(context)
    # Two threads wait for each other by spinning, which hardly ends where other processes want the cores.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.verbosity = -1
    if template:
        params.use_jinja = True
        params.chat_template = template
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(*sys.argv[1:])
