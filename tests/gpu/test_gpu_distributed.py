"""Models that train over two GPUs, a process for each, over NCCL: compiled, they train as in eager."""

from pathlib import Path

import pytest
import torch
from tests.programs.distributed.test_distributed import train_over_two_processes


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_compiled_models_train_as_in_eager(tmp_path: Path) -> None:
    train_over_two_processes("cuda", tmp_path)
