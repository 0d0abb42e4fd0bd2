"""The machine that benchmarks run on: its description, its peak rates, and what a model needs of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate._version import __version__
from magistrate.engines.disable_telemetry import import_openvino
from magistrate.errors import ModelError

if TYPE_CHECKING:
    import numpy as np

ROOT = Path(__file__).resolve().parent.parent
GIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the installation. `cores` are those that this process may use.

    `commit` is None outside a git repository; a `+` at its end marks changed files.
    """

    cpu: str
    cores: int
    system: str
    python: str
    magistrate: str
    commit: str | None


def machine(cores: int) -> Machine:
    """Return this machine and this installation."""
    return Machine(
        _cpu(),
        cores,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        __version__,
        _commit(),
    )


def load() -> float | None:
    """Return the load average of the last minute; None if the system does not provide it."""
    return os.getloadavg()[0] if sys.platform != "win32" else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.processor() or platform.machine())


def _commit() -> str | None:
    if not (ROOT / ".git").exists():
        return None
    try:
        head = _git("rev-parse", "--short=12", "HEAD").strip()
        return head + "+" * bool(_git("status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True, timeout=GIT_SECONDS
    )
    return done.stdout


BYTES = 256 << 20  # much larger than any cache
ROWS, WIDTH = 512, 2048  # shape of the products
GROUP = 128  # inputs that share a scale in the int8 product
REPEATS = 3
FASTER = 1.3  # least speedup over f32 for a product to count as computed in int8
_LARGEST, _LEVELS = 1.0, 256


@dataclass(frozen=True, slots=True)
class Limits:
    """The best rates measured. Bandwidths in 10^9 bytes per second (`copy` counts reads and writes).

    Products are in 10^9 operations per second (a multiplication and an addition are two). `int8` is None if
    no kernel multiplied in 8 bits.
    """

    read_gb_s: float
    copy_gb_s: float
    f32_gflop_s: float
    int8_gop_s: float | None

    def better(self, other: Limits) -> Limits:
        """Return the larger of each rate: other load on the machine does not lower a limit."""
        eights = [each for each in (self.int8_gop_s, other.int8_gop_s) if each is not None]
        return Limits(
            max(self.read_gb_s, other.read_gb_s),
            max(self.copy_gb_s, other.copy_gb_s),
            max(self.f32_gflop_s, other.f32_gflop_s),
            max(eights, default=None),
        )


class LimitsMeter:
    """Measures the limits of `threads` threads repeatedly, and keeps its buffers in between."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._products = _products(threads)

    def measure(self, repeats: int = REPEATS) -> Limits:
        """Return each rate as the best of `repeats` runs; takes about a second."""
        read, copy = _bandwidths(self._threads, repeats)
        operations = 2 * ROWS * WIDTH * WIDTH / 1e9
        rate = {name: operations / _best(run, repeats) for name, run in self._products.items()}
        f32 = max(rate["f32"], rate["f32 numpy"])
        int8 = max(rate["int8 quantized"], rate["int8 dynamic"])
        return Limits(read, copy, f32, int8 if int8 > FASTER * rate["f32"] else None)


def _best(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _bandwidths(threads: int, repeats: int) -> tuple[float, float]:
    import numpy as np

    source = np.ones(BYTES // 4, np.float32)
    target = np.empty_like(source)
    parts, places = np.array_split(source, threads), np.array_split(target, threads)
    with ThreadPoolExecutor(threads) as pool:
        # A dot product of a vector with itself reads it once and is bound by memory, not computation.
        read = _best(lambda: list(pool.map(lambda part: part.dot(part), parts)), repeats)
        copy = _best(lambda: list(pool.map(np.copyto, places, parts)), repeats)
    return source.nbytes / read / 1e9, 2 * source.nbytes / copy / 1e9


def _products(threads: int) -> dict[str, Callable[[], object]]:
    """Return ready-to-run matrix products: numpy's in f32, and OpenVINO's in f32 and 8 bits.

    The 8-bit ones have weights and activations quantized ahead, or activations quantized on the fly.
    """
    import numpy as np

    openvino = import_openvino()
    draw = np.random.default_rng(0)
    left = draw.random((ROWS, WIDTH), np.float32)
    right = draw.random((WIDTH, WIDTH), np.float32) - np.float32(0.5)
    core = openvino.Core()
    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP,
    }

    def ready(weights: Any, quantized: bool = False) -> Callable[[], object]:
        from openvino import opset13 as ops

        inputs = ops.parameter([ROWS, WIDTH], np.float32)
        read = _quantized(inputs, 0.0, _LARGEST, _LEVELS) if quantized else inputs
        model = openvino.Model([ops.matmul(read, weights, False, True)], [inputs])
        request = core.compile_model(model, "CPU", config).create_infer_request()
        request.set_input_tensor(openvino.Tensor(left))
        run: Callable[[], object] = request.infer
        return run

    from openvino import opset13 as ops

    return {
        "f32": ready(ops.constant(right)),
        "f32 numpy": lambda: left @ right,
        "int8 quantized": ready(_quantized(ops.constant(right), -0.5, 0.5, _LEVELS - 1), quantized=True),
        "int8 dynamic": ready(_compressed(draw)),
    }


def _quantized(node: Any, low: float, high: float, levels: int) -> Any:
    """Return `node` rounded to `levels` levels, which OpenVINO converts to integers."""
    import numpy as np
    from openvino import opset13 as ops

    least, most = ops.constant(np.float32(low)), ops.constant(np.float32(high))
    return ops.fake_quantize(node, least, most, least, most, levels)


def _compressed(draw: np.random.Generator) -> Any:
    """Return weights stored in 8 bits with one scale per group, as in a model's file."""
    import numpy as np
    from openvino import opset13 as ops

    shape = (WIDTH, WIDTH // GROUP, GROUP)
    weights = ops.constant(draw.integers(-100, 100, shape).astype(np.int8))
    scales = ops.constant(draw.random((*shape[:2], 1), np.float32).astype(np.float16))
    scaled = ops.multiply(ops.convert(weights, "f16"), scales)
    flat = ops.reshape(scaled, ops.constant(np.array([WIDTH, WIDTH])), False)
    return ops.convert(flat, "f32")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The computation and memory traffic that a model needs.

    `gflop` is 10^9 operations per prompt token, in products with weights, without the head (which a prompt
    needs for its last token only). `step_bytes` is what one decoding step reads of the stored weights,
    including the head. `int8` is true if the weights are stored in 8 bits, so that products may be computed
    in 8 bits.
    """

    gflop: float
    step_bytes: int
    int8: bool


def geometry(folder: Path) -> Geometry:
    """Return the geometry of an OpenVINO folder. Raises `ModelError` if it has no products with weights."""
    openvino = import_openvino()
    try:
        model = openvino.Core().read_model(folder / "openvino_model.xml")
    except RuntimeError as error:
        raise ModelError(f"OpenVINO cannot read {folder}: {str(error).strip()[:300]}") from error
    head = _above(model.get_results()[0], "MatMul")
    weights, step_bytes, int8 = 0, 0, False
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        constants = _constants(node.input_value(1).get_node())
        if not constants:
            continue  # a product of two activations
        step_bytes += sum(_bytes(constant) for constant in constants)
        int8 |= any(constant.get_output_element_type(0).bitwidth == 8 for constant in constants)
        if node.get_friendly_name() != head.get_friendly_name():
            weights += prod(node.input_value(1).get_shape())
    if not weights:
        raise ModelError(f"{folder} has no matrix products with weights; is it a language model?")
    return Geometry(2 * weights / 1e9, step_bytes, int8)


def _above(node: Any, kind: str) -> Any:
    """Return the nearest node of this type upstream along first inputs."""
    while node.get_type_name() != kind:
        if not node.get_input_size():
            raise ModelError("the model's result does not come from a matrix product")
        node = node.input_value(0).get_node()
    return node


def _constants(node: Any) -> list[Any]:
    """Return the constants that a node is made of; empty if it depends on the model's input."""
    if node.get_type_name() == "Constant":
        return [node]
    found: list[Any] = []
    for at in range(node.get_input_size()):
        below = _constants(node.input_value(at).get_node())
        if not below:
            return []
        found += below
    return found


def _bytes(constant: Any) -> int:
    bits = int(constant.get_output_element_type(0).bitwidth)
    return (int(prod(constant.get_output_shape(0))) * bits + 7) // 8
