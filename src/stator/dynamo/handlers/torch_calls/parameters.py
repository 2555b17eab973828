"""Parameters that captured code makes."""

from __future__ import annotations

from torch import nn

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.capture_result import GraphInput
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, call_recipe
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import example_of_number
from stator.dynamo.values.tensors.input_parameters import InputParameterValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_methods import TENSOR_CLASSES
from stator.graph.fake.wrapper_subclasses import is_wrapper


@calls(nn.Parameter)
def _parameter(context: CaptureContext, data: Value | None = None, requires_grad: Value | None = None) -> Value:
    """A parameter that requires grad can leave the graph if it is made of an input."""
    if not isinstance(data, TensorValue) or not context.in_the_call or context.recorder.transforms:
        raise unsupported("parameter", "making a parameter from something other than a tensor, or inside of a subgraph")
    wanted = requires_grad is None or context.truth(requires_grad)
    if wanted and _is_input_as_it_was(context, data):
        return _of_input(context, data)
    return context.record_function(nn.Parameter, [data], {"requires_grad": ConstantValue(wanted)})


def _is_input_as_it_was(context: CaptureContext, data: TensorValue) -> bool:
    """Whether a tensor is an input of torch's own class, whose layout and memory captured code did not replace."""
    if data.obj is None or data.source is None or type(data.obj) not in TENSOR_CLASSES:
        return False
    if is_wrapper(data.fake) or data.fake.is_inference() or (data.attributes and "data" in data.attributes):
        return False
    layout = [example_of_number(number) for number in (*data.fake.shape, *data.fake.stride())]
    return layout == [*data.obj.shape, *data.obj.stride()]


def _of_input(context: CaptureContext, data: TensorValue) -> Value:
    recorder = context.recorder
    assert data.obj is not None and data.source is not None
    example = nn.Parameter(data.obj)
    fake = recorder.mode.from_real(example, data.fake.meta)  # type: ignore[attr-defined]
    node = recorder.new_placeholder("parameter", fake)
    made = call_recipe(nn.Parameter, Load(data.source), ConstantRecipe(True))
    recorder.inputs.append(GraphInput(node.name, made, example))
    value = recorder.by_fake[id(fake)] = InputParameterValue(fake, node, data, made)
    return value
