"""Models that train over two processes: compiled, they train as in eager, and never hang."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("families.py")
FAMILIES = ("ddp", "fsdp1", "fsdp2", "tensor_parallel", "two_dimensions", "distributed_tensors", "collectives")


def train_over_two_processes(device: str, folder: Path) -> None:
    """All families in one pair of processes, which take longer to start than to train; the text names the family."""
    path = os.pathsep.join([str(SCRIPT.parents[3]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), str(folder), device, *FAMILIES],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=480)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(texts)


def test_compiled_models_train_as_in_eager(tmp_path: Path) -> None:
    train_over_two_processes("cpu", tmp_path)
