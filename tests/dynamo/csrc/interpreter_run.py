"""Builds the C extension with the interpreter that runs this file and runs the test functions of the given files.

Needs no torch, setuptools or pytest. Usage: python interpreter_run.py SOURCE_FOLDER TEST_FILE...
"""

import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import types
from pathlib import Path


def build(source: Path, folder: Path) -> Path:
    target = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    csrc = source / "stator/dynamo/csrc"
    command = ["gcc", "-O1", "-std=gnu11", "-Wall", "-Werror", "-fPIC", "-shared", "-o", str(target)]
    includes = [f"-I{path}" for path in (sysconfig.get_path("include"), csrc, source / "stator/runtime/csrc")]
    subprocess.run([*command, *includes, *map(str, sorted(csrc.glob("*.c")))], check=True)
    return target


def load(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(source: Path, files: list[Path]) -> int:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    # bare packages: the real ones may import torch
    for name in ("stator", "stator.dynamo"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(source / name.replace(".", "/"))]
    with tempfile.TemporaryDirectory() as folder:
        sys.modules["stator.dynamo"]._native = load("stator.dynamo._native", build(source, Path(folder)))
        failures = count = 0
        for path in files:
            for name, test in list(vars(load(path.stem, path)).items()):
                if name.startswith("test_") and isinstance(test, types.FunctionType):
                    count += 1
                    try:
                        test()
                    except BaseException:
                        failures += 1
                        print(f"FAILED {path.name}::{name}")
                        traceback.print_exc()
        print(f"{sys.version.split()[0]}: {count} tests, {failures} failures")
        return 1 if failures or not count or "torch" in sys.modules else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]]))
