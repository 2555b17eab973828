"""The loop that a cache expects of its compiler, around a function that compiles a frame without a capture."""

from __future__ import annotations

from stator.dynamo.ir.capture_assumptions import Retry


def driven(compile_frame):
    """`compile_frame(function, bound) -> CompiledFrame`, as make_cache takes it."""

    def drive(function, bound, assumptions, install):
        while True:
            try:
                return install(compile_frame(function, bound), assumptions)
            except Retry as retry:
                assumptions = retry.assumptions

    return drive
