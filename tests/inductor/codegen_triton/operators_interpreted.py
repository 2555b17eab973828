"""Runs in a process of its own, in Triton's interpreter: OpInfo's samples, compiled with symbols for their sizes and
compared with eager at these and other sizes. Arguments: names of operators, or a range of their numbers. Prints
failures, then "done"."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path

import interpreter  # noqa: F401 - before anything loads Triton
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "opinfo"))

from test_inductor_all_sizes import NAMED, problems

from stator.base.errors import CompileError


def main() -> None:
    warnings.simplefilter("ignore")  # of deprecated operators and beta features
    for name, operator in NAMED:
        if name not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        try:
            for problem in problems([(name, operator)], 1):
                print(f"FAILED {problem}")
        except CompileError as error:
            print(f"FAILED {name}: {error}")
        except Exception:
            print(f"FAILED {name}:\n{traceback.format_exc(limit=-4)}")
    print("done")


if __name__ == "__main__":
    main()
