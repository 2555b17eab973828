"""The kinds of graph breaks, with a hint for each. docs/graph-breaks.md lists them with their causes."""

from __future__ import annotations

PROGRAM_ERRORS = frozenset(("exception", "torch-error"))  # kinds of breaks where the program itself fails

HINTS: dict[str, str] = {
    "changing-number": "keep it in a tensor",
    "data-dependent-jump": "torch.where, or decide outside",
    "data-dependent-value": "keep it in a tensor",
    "requested": "remove it",
    "debugger": "remove it when you are done",
    "call-builtin": "call it outside, or accept the break",
    "numpy-function": "nothing: it runs as it is",
    "call": "call a function or a method written in Python",
    "disabled": "let it be compiled, or accept the break",
    "torch-argument": "convert it first",
    "torch-error": "run eagerly: eager should raise this error",
    "operator-rule": "mend the rule, or register one",
    "torch-result": "call it outside",
    "tensor-method": "call it outside",
    "custom-function": "keep both free of effects and of tensors inside other objects",
    "checkpoint": "use_reentrant=False",
    "deferred-effect": "compute only, there",
    "deferred-fact": "decide before, and keep the decision",
    "autograd": "call it outside",
    "function-transform": "call the transform outside",
    "tensor-subclass": "convert it to a plain tensor before",
    "lazy-module": "nothing: the first call runs eagerly",
    "tensor-layout": "convert them to dense ones (to_padded_tensor)",
    "parameter": "make it in __init__",
    "module-registration": "do so in __init__",
    "script-module": "use the module it was made from",
    "nested-compile": "compile the outermost module only",
    "nested-trace": "call it outside of the other tracer",
    "attribute": "read or write it outside of the compiled function",
    "attribute-write": "read or write it outside of the compiled function",
    "descriptor": "use a plain attribute or property",
    "special-method": "use a plain attribute or property",
    "super": "use a plain attribute or property",
    "subscript": "convert the object to a plain container or number before",
    "len": "convert the object to a plain container or number before",
    "contains": "convert the object to a plain container or number before",
    "iteration": "convert the object to a plain container or number before",
    "operator": "convert the object to a plain container or number before",
    "format": "convert the object to a plain container or number before",
    "unhashable-key": "use a plain dict, list or set of constants",
    "set-members": "use a plain dict, list or set of constants",
    "module-class": "use a plain dict, list or set of constants",
    "weak-container": "fill and go through it outside, or accept the break",
    "varying-loop": "nothing: it runs by itself, as in eager, with a compiled body",
    "varying-length": "keep the items in a tensor",
    "long-loop": "nothing: it runs by itself, as in eager",
    "finalizer": "let go of it outside, or accept the break",
    "identity": "compare with ==",
    "copy": "copy it outside",
    "functools": "copy it outside",
    "new-object": "make it outside",
    "class-definition": "define it at module level",
    "exception": "nothing, where the exception is meant; else avoid it",
    "raise": "nothing, where the exception is meant; else avoid it",
    "async": "compile the code that consumes it",
    "generator": "compile the code that consumes it",
    "inline-depth": "use a loop",
    "not-constant": "pass a constant there",
    "opcode": "write it another way, or call it outside",
    "result": "call it outside",
    "unguardable": "pass it in, or reach it through a global",
    "mutation": "change it outside",
    "reconstruct": "use it up before the graph ends",
}

# By the name of the argument's class
_ARGUMENT_HINTS: dict[str, str] = {
    "Generator": "draw from it outside and pass the numbers in, or draw from torch's default one",
}

# Kinds of errors of later stages, some of which capture meets while it runs an operator's shape rule.
REFUSAL_HINTS: dict[str, str] = {
    "operator-without-shape-rule": "register it with torch.library.register_fake",
    "mutating-operator": "register it with torch.library.register_fake",
    "operator-without-gradient": "register one with torch.library.register_autograd",
    "gradient-layout": "convert them to dense ones",
    "gradient-loop": "none is needed: the operator runs in ATen",
    "lazy-conjugate": "call .resolve_conj() or .resolve_neg()",
    "storage-mutation": "make a new tensor",
    "layout-mutation": "make a new tensor",
    "input-layout-mutation": "make a new tensor",
    "input-data-assignment": "make a new tensor",
    "view-mutation": "make a new tensor",
    "overlapping-write": ".contiguous() or .clone() before writing",
    "overlapping-input": ".contiguous() or .clone() before writing",
    "overlapping-inputs": ".contiguous() or .clone() before writing",
    "overlapping-output": ".contiguous() or .clone() before writing",
    "as-strided": ".contiguous() or .clone() before writing",
    "captured-tensor-mutation": "pass the tensor in, or make it a buffer",
    "random-generator": "use torch's default one",
    "requires-grad-output": "return the tensor itself, or a clone",
    "aliased-gradient": "return the tensor itself, or a clone",
    "backward": "return the tensor itself, or a clone",
    "attention-mask": "leave out return_debug_mask and shared_storage_dqdkdv",
    "attention-gradients": "leave out return_debug_mask and shared_storage_dqdkdv",
    "double-backward": "none is needed: it runs eagerly",
    "recurrent-layer": "call torch.lstm",
    "dynamic-shape": "make the size a fixed one",
    "data-dependent": "make the size a fixed one",
    "tensor-data": "read it outside of the compiled function",
}


def break_hint(kind: str, hint: str | None) -> str | None:
    """The hint of the break itself, or the general hint for its kind."""
    return hint or HINTS.get(kind) or REFUSAL_HINTS.get(kind)


def argument_hint(kind: type) -> str | None:
    """The hint for an argument that torch's functions take, and graphs do not; None for the general one."""
    return _ARGUMENT_HINTS.get(kind.__name__)
