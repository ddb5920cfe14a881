"""What has to hold on accelerators, as far as it can be tested without one.

Devices are pretended: a port may declare any, and what frameworks raise when a GPU is full is
raised by hand. Nothing here shows that results on a GPU are right.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from qkvac.cells import Result, Status, Subject
from qkvac.engine.engine import Engine
from qkvac.execution import survey as survey_module
from qkvac.execution.survey import survey
from qkvac.isolation import slots
from qkvac.isolation.channel import is_out_of_memory
from qkvac.isolation.slots import PLACES, Slot
from qkvac.subjects import registry
from qkvac.subjects.roster import Entry, wanted
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.arrays import first_line
from qkvac.targets.declaration import DeclarationError, parse
from qkvac.tests.suite.engine_ports import MAIN, ONE, SMALL, statuses, write
from qkvac.tests.suite.laboratory import alone, inside
from qkvac.usage import UsageError

ROOT = Path(__file__).parents[2]
FOUND = ("cpu", "cuda:0", "cuda:1")


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        ((), FOUND),
        (("all",), FOUND),
        (("all", "cpu"), FOUND),
        (("cpu",), ("cpu",)),
        (("cuda",), ("cuda:0",)),
        (("cuda:1", "cpu"), ("cpu", "cuda:1")),
        (("tpu",), ()),
    ],
)
def test_devices_are_selected_by_name_kind_or_all(
    selected: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert wanted(selected, FOUND) == expected


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch finds two GPUs, and nothing else does."""

    def found(chosen: registry.Backend, *_: Any) -> tuple[str, ...]:
        return FOUND if chosen.name == "torch" else ("cpu",)

    monkeypatch.setattr(survey_module, "_devices", found)
    monkeypatch.setattr(registry, "accelerators", lambda: True)
    monkeypatch.setattr(registry.Backend, "lacking", ())


def subjects(*backends: str, devices: tuple[str, ...] = ()) -> list[str]:
    made = survey(Selection(backends=backends, devices=devices), Options())
    return [entry.subject.id for entry in made.entries]


@pytest.mark.usefixtures("two_gpus")
def test_a_mode_runs_on_the_devices_that_it_is_for() -> None:
    everywhere = {f"torch/{mode}@{device}" for mode in ("eager", "compile") for device in FOUND}
    tf32 = {"torch/tf32@cuda:0", "torch/tf32@cuda:1"}
    assert set(subjects("torch")) == everywhere | tf32
    assert set(subjects("torch", devices=("all",))) == everywhere | tf32
    assert subjects("torch/tf32", devices=("cuda",)) == ["torch/tf32@cuda:0"]


@pytest.mark.usefixtures("two_gpus")
def test_a_mode_that_no_device_is_for_is_said() -> None:
    with pytest.raises(UsageError, match="torch/tf32: for none of the devices that there are"):
        subjects("torch/tf32", devices=("cpu",))


@pytest.mark.usefixtures("two_gpus")
def test_who_finds_no_such_device_is_said() -> None:
    made = survey(Selection(backends=("torch", "jax"), devices=("cuda",)), Options())
    assert made.notes == ("jax finds no cuda here",)
    assert {entry.subject.backend for entry in made.entries} == {"torch"}


def test_modes_of_other_devices_are_an_obstacle_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "accelerators", lambda: False)
    monkeypatch.setattr(registry.Backend, "lacking", ())
    assert registry.backend("torch").obstacle("tf32") == "there is no cuda here"


def test_devices_of_a_mode_are_checked() -> None:
    declared = {"modes": ["a", "b"], "devices": ["cpu", "cuda"], "mode_devices": {"b": ["cuda"]}}
    found = parse(declared)
    runs = {(mode, device) for mode in "ab" for device in FOUND if found.runs_on(mode, device)}
    assert runs == {("a", device) for device in FOUND} | {("b", "cuda:0"), ("b", "cuda:1")}
    with pytest.raises(DeclarationError, match="mode_devices"):
        parse({**declared, "mode_devices": {"b": "cuda"}})


# --- TensorFloat-32 -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_tf32_is_declared_of_float32_in_its_own_mode_alone(name: str) -> None:
    raw = registry.backend(name).raw
    coarse = {
        (mode, dtype)
        for mode in raw["modes"]
        for dtype in raw["dtypes"]
        for entry in [Entry(Subject(name, mode, "cuda:0"), raw, (), {})]
        if entry.arithmetic(dtype).operands == "tfloat32"
    }
    assert coarse == {("tf32", "float32")}


def _torch_settings(mode: str) -> tuple[object, ...]:
    import torch

    from qkvac.backends.adapter import ModeError
    from qkvac.backends.torch.adapter import Torch

    adapter = Torch(mode, "cpu")
    adapter.check_settings()
    found = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if found[0] == "high" else "high")
    try:
        adapter.check_settings()
    except ModeError:
        return found
    return ("a change is not noticed",)


def _jax_settings(mode: str) -> tuple[object, ...]:
    import jax

    from qkvac.backends.adapter import ModeError
    from qkvac.backends.jax.adapter import FUNCTIONS, Jax

    adapter = Jax(mode, "cpu", FUNCTIONS)
    adapter.check_settings()
    found = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", "bfloat16")
    try:
        adapter.check_settings()
    except ModeError:
        return (found,)
    return ("a change is not noticed",)


def _tensorflow_settings(mode: str) -> tuple[object, ...]:
    import tensorflow as tf

    from qkvac.backends.adapter import ModeError
    from qkvac.backends.tensorflow.adapter import FUNCTIONS, TensorFlow

    adapter = TensorFlow(mode, "cpu", FUNCTIONS)
    adapter.check_settings()
    found = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(not found)
    try:
        adapter.check_settings()
    except ModeError:
        return (found,)
    return ("a change is not noticed",)


@pytest.mark.parametrize(
    ("framework", "settings", "off", "on"),
    [
        ("torch", _torch_settings, ("highest", False), ("high", True)),
        ("jax", _jax_settings, ("highest",), ("tensorfloat32",)),
        ("tensorflow", _tensorflow_settings, (False,), (True,)),
    ],
    ids=["torch", "jax", "tensorflow"],
)
def test_tf32_is_on_in_its_mode_and_off_in_others(
    framework: str,
    settings: Callable[[str], tuple[object, ...]],
    off: tuple[object, ...],
    on: tuple[object, ...],
) -> None:
    if not find_spec(framework):
        pytest.skip(f"{framework} is not installed")
    assert alone(_in_turn, settings, "eager", "tf32", "eager") == [off, on, off]


def _in_turn(settings: Callable[[str], tuple[object, ...]], *modes: str) -> list[object]:
    return [settings(mode) for mode in modes]


# --- memory -------------------------------------------------------------------------------------


def _exhausted() -> Iterator[BaseException]:
    """What frameworks raise when a GPU is full, in their own classes where they are installed."""
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1 GiB"
    if find_spec("torch"):
        import torch

        yield torch.cuda.OutOfMemoryError(message)
    yield RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    yield RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY")
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
    if find_spec("jax"):
        import jax

        yield jax.errors.JaxRuntimeError(text)
    yield RuntimeError(text)


def _tensorflow_exhausted() -> list[str]:
    import tensorflow as tf

    texts = (
        "{{function_node __wrapped__MatMul_device_/job:localhost/device:GPU:0}} failed to allocate "
        "memory [Op:MatMul]",
        "OOM when allocating tensor with shape[65536,65536] and type float on /device:GPU:0",
        "SameWorkerRecvDone unable to allocate output tensor",
    )
    errors = [tf.errors.ResourceExhaustedError(None, None, text) for text in texts]
    return [first_line(error) for error in errors]


def test_what_frameworks_say_of_a_full_gpu_is_known() -> None:
    said = [first_line(error) for error in _exhausted()]
    if find_spec("tensorflow"):
        said += inside("tensorflow", _tensorflow_exhausted)
    assert [text for text in said if not is_out_of_memory(text)] == []


def test_other_errors_of_a_gpu_are_not_taken_for_it() -> None:
    for text in (
        "CUDA error: an illegal memory access was encountered",
        "CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm",
        "INTERNAL: Failed to launch CUDA kernel: out of resources",
    ):
        assert not is_out_of_memory(text)


def test_a_full_gpu_costs_its_case_and_not_the_process(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        class OutOfMemoryError(RuntimeError):
            pass

        def attention(X, *W):
            if len(X) == 33:
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return plain(X, *W)
        """,
    )
    selection = Selection(port=port, dtypes=("float32",), cases=(SMALL, MAIN, ONE))
    results = list[Result]()
    with Engine(selection, Options(cache=False, workers=1)) as engine:
        engine.run(results.append)
    assert set(statuses(results, MAIN).values()) == {Status.ERROR}
    assert all(
        (result.reason or "").startswith("out of memory: ")
        for result in results
        if result.status == Status.ERROR
    )
    for case in (SMALL, ONE):
        assert Status.ERROR not in statuses(results, case).values()
    assert engine.starts == {"my_port@cpu": 1}


# --- slots --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slots of this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


class Impatient:
    """Gives up after having been asked some times."""

    def __init__(self, times: int = 3) -> None:
        self.left = times

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def held(slot: Slot) -> bool:
    return slot._file is not None


@pytest.mark.usefixtures("folder")
def test_a_device_has_so_many_places_and_the_cpu_needs_none() -> None:
    slots_ = [Slot("cuda:0", Impatient()) for _ in range(PLACES)]
    assert all(map(held, slots_))
    late = Impatient()
    assert not held(Slot("cuda:0", late))
    assert late.left < 0, "it waited"
    other = Slot("cuda:1", Impatient())
    assert held(other)
    assert not held(Slot("cpu", lambda: pytest.fail("it waits")))
    slots_.pop().close()
    again = Slot("cuda:0", Impatient())
    assert held(again)
    for slot in (*slots_, again, other):
        slot.close()


@pytest.mark.usefixtures("folder")
def test_devices_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = slots.paths("cuda:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert not set(first) & set(slots.paths("cuda:0"))


@pytest.mark.usefixtures("folder")
def test_a_place_is_free_when_its_process_has_died() -> None:
    code = (
        "from qkvac.isolation.slots import Slot; import os;"
        "s = Slot('cuda:0', places=1); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    slot = Slot("cuda:0", Impatient(), places=1)
    assert held(slot)
    slot.close()


COUNTING = """
QKVAC = {"dtypes": ["float32"], "devices": ["cpu", "gpu:0"],
         "modes": ["a", "b", "c", "d", "e"]}

place, wait, most = os.environ["ALIVE"], float(os.environ["WAIT"]), 0
open(os.path.join(place, str(os.getpid())), "w").close()
until = time.monotonic() + wait
while most < 5 and time.monotonic() < until:
    alive = [pid for pid in os.listdir(place) if os.path.exists("/proc/" + pid)]
    most = max(most, len(alive))
    time.sleep(0.05)
open(os.path.join(place, "..", "most"), "a").write(f"{most}\\n")
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="counts processes in /proc")
@pytest.mark.parametrize(
    ("device", "wait", "least", "most"), [("cpu", "60", 5, 6), ("gpu:0", "1", 1, PLACES)]
)
def test_few_processes_use_an_accelerator_at_a_time(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    wait: str,
    least: int,
    most: int,
) -> None:
    """Each of five modes waits for the others: on the CPU they meet, on an accelerator never."""
    (folder / "alive").mkdir()
    monkeypatch.setenv("ALIVE", str(folder / "alive"))
    monkeypatch.setenv("WAIT", "0")
    port = write(folder, COUNTING)
    selection = Selection(port=port, devices=(device,), cases=(f"attention/{SMALL}",))
    with Engine(selection, Options(cache=False, workers=5, timeout=60)) as engine:
        (folder / "most").unlink()
        monkeypatch.setenv("WAIT", wait)
        engine.run(lambda result: None)
    counted = [int(line) for line in (folder / "most").read_text(encoding="utf-8").split()]
    assert least <= max(counted) <= most


# --- the script ---------------------------------------------------------------------------------

SCRIPT = ROOT / ".ci" / "gpu"
CHECKOUT = pytest.mark.skipif(not SCRIPT.exists(), reason="needs a checkout")


def script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), "--out", str(folder / "out"), *words],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


@CHECKOUT
def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    done = script(tmp_path, "--dry-run", "--wheels", str(wheels), "--", "-b", "torch")
    assert done.returncode == 0, done.stderr
    assert f"--no-index --find-links {wheels} ." in done.stdout
    assert "run --device cuda --profile attention" in done.stdout
    assert done.stdout.count("-b torch") == 2
    assert not (tmp_path / "out").exists()


@CHECKOUT
@pytest.mark.parametrize(
    "words",
    [("--no-such",), ("--out",), ("--wheels", "no/such/folder"), ("--minutes", "x"), ("-h", "x")],
)
def test_bad_usage_of_the_script_is_one_line_and_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = script(tmp_path, "--dry-run", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@CHECKOUT
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shellcheck_has_nothing_to_say_of_the_script() -> None:
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
