"""Convolutions: values, the memory format of what goes in and out, and that consumers follow it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers, library_calls, loop_nodes
from torch._ops import OpOverload

from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.lower import can_lower, lower
from stator.inductor.lower.operators import convolution as lowering
from stator.inductor.passes import run_passes
from stator.prims.layout import channels_last_strides, contiguous_strides

convolution = torch.ops.aten.convolution.default


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(lowering, "is_product_quicker", lambda *_, channels_last: False)  # timing may say another


def is_product(node):
    """Whether a call multiplies matrices: by a library, or by a kernel of ours that packs the matrix in each call."""
    if isinstance(node.target, DirectConvolution):
        return node.target.matrix is not None
    return isinstance(node.target, OpOverload) and node.target is not convolution


def input_strides(lowered, argument=0):
    """Strides of each convolution's data argument, or of another one."""
    found = []
    for node in library_calls(lowered):
        if node.target is convolution or (isinstance(node.target, DirectConvolution) and not is_product(node)):
            data = node.args[argument]
            found.append(data.layout.stride if isinstance(data, View) else lowered.buffers[data].layout.stride)
    return found


def test_depthwise_network_runs_in_channels_last_between_eager_ends():
    x = torch.randn(1, 8, 12, 12)
    w1, w2 = torch.randn(16, 8, 1, 1), torch.randn(16, 1, 3, 3)
    scale, shift, mean, var = torch.randn(16), torch.randn(16), torch.randn(16), torch.rand(16) + 0.5

    def network(x, w1, w2, scale, shift, mean, var):
        x = F.relu(F.batch_norm(F.conv2d(x, w1), mean, var, scale, shift))
        x = F.relu(F.batch_norm(F.conv2d(x, w2, None, 1, 1, 1, 16), mean, var, scale, shift))
        return F.max_pool2d(x, 2)

    lowered = assert_lowers(network, x, w1, w2, scale, shift, mean, var, library=2, tolerance=1e-4)
    assert input_strides(lowered) == [channels_last_strides((1, 8, 12, 12)), channels_last_strides((1, 16, 12, 12))]
    strided = [node.body for node in loop_nodes(lowered) if node.body.ranges == (144, 16)]
    assert strided, "the loops between run over memory order, channels innermost"
    for body in strided:
        for op in body.ops:
            if op.name == "load":
                index = body.indices[op.args[1].position]
                assert index.coefficient(body.vars[-1]) == 1


@pytest.mark.parametrize(("width", "nhwc"), [(8, True), (32, False)])
def test_narrow_groups_run_in_channels_last(width, nhwc):
    x = torch.randn(2, 64, 5, 7)
    w1, w2, w3 = torch.randn(64, 64, 1, 1), torch.randn(64, width, 3, 3), torch.randn(64, 64, 1, 1)

    def network(x, w1, w2, w3):
        return F.conv2d(F.conv2d(F.conv2d(x, w1).relu(), w2, None, 1, 1, 1, 64 // width).relu(), w3)

    lowered = assert_lowers(network, x, w1, w2, w3, library=3, tolerance=1e-3)
    strides = channels_last_strides if nhwc else contiguous_strides
    assert input_strides(lowered)[0 if nhwc else 1] == strides((2, 64, 5, 7))


def test_dense_network_stays_in_eagers_format():
    x, w = torch.randn(1, 4, 9, 9), torch.randn(6, 4, 3, 3)
    lowered = assert_lowers(lambda x, w: F.relu(F.conv2d(x, w)), x, w, library=1, tolerance=1e-4)
    assert input_strides(lowered) == [contiguous_strides((1, 4, 9, 9))]


def test_images_of_one_channel_have_eagers_strides_also_where_no_element_moves():
    """The library takes the format of its results from all strides, and a result in another one would be copied."""
    x, w = torch.randn(2, 1, 9, 9), torch.randn(6, 1, 3, 3)

    def network(x, w):
        return F.conv2d((x - x.mean((1, 2, 3), keepdim=True)).to(memory_format=torch.channels_last), w)

    lowered = assert_lowers(network, x, w, library=1, tolerance=1e-4)
    assert input_strides(lowered) == [(81, 1, 9, 1)]


@pytest.mark.parametrize(("images", "training", "nhwc"), [(1, False, False), (4, False, True), (4, True, False)])
def test_kernels_of_several_taps_share_the_format_that_saves_more_together(images, training, nhwc):
    """The second kernel alone, of many weights for little data, would stay in NCHW."""
    x, few, many = torch.randn(images, 8, 64, 64), torch.randn(64, 8, 3, 3), torch.randn(80, 64, 3, 3)

    def function(x, few, many):
        return F.conv2d(F.avg_pool2d(F.conv2d(x, few, None, 2), 3), many)

    graph = run_passes(trace(function, [x, few, many], keep=can_lower).graph, False)
    if training:
        graph.meta["part"] = "forward"
    strides = channels_last_strides if nhwc else contiguous_strides
    assert input_strides(lower(graph)) == [strides(x.shape), strides((images, 64, 10, 10))]


def test_images_of_one_channel_become_channels_last_by_their_kernel():
    """Neither moves an element for it, and the results are what the depthwise kernel wants."""
    x, w1, w2 = torch.randn(2, 1, 16, 20), torch.randn(24, 1, 3, 3), torch.randn(24, 1, 3, 3)

    def network(x, w1, w2):
        return F.conv2d(F.conv2d(x, w1, None, 2, 1).relu(), w2, None, 1, 1, 1, 24)

    lowered = assert_lowers(network, x, w1, w2, library=2, tolerance=1e-4)
    assert input_strides(lowered) == [channels_last_strides((2, 1, 16, 20)), channels_last_strides((2, 24, 8, 10))]
    assert input_strides(lowered, 1)[0] == channels_last_strides((24, 1, 3, 3))


def test_kernels_for_channels_last_data_have_its_format():
    """Given others, the library copies them itself."""
    x, w = torch.randn(2, 8, 16, 20).to(memory_format=torch.channels_last), torch.randn(6, 8, 3, 3)
    lowered = assert_lowers(lambda x, w: F.conv2d(x, w), x, w, library=1, tolerance=1e-4)
    assert input_strides(lowered, 1) == [channels_last_strides((6, 8, 3, 3))]


def test_patches_that_are_normalised_over_channels_come_out_in_channels_last():
    x, w = torch.randn(1, 3, 64, 64), torch.randn(6, 3, 4, 4)

    def patches(x, w):
        return F.layer_norm(F.conv2d(x, w, None, 4).permute(0, 2, 3, 1), (6,))

    lowered = assert_lowers(patches, x, w, library=1, tolerance=1e-4)
    assert input_strides(lowered) == [channels_last_strides((1, 3, 64, 64))]


@pytest.mark.each_pair
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_one_tap_convolution_is_a_product(memory_format, batch, bias):
    x = torch.randn(batch, 64, 16, 20).to(memory_format=memory_format)
    w, b, d = torch.randn(96, 64, 1, 1), torch.randn(96), torch.randn(96, 1, 3, 3)

    def plain(x, w, b):
        return F.conv2d(x, w, b if bias else None)

    def with_depthwise(x, w, b, d):
        return F.conv2d(F.conv2d(x, w, b if bias else None).sigmoid(), d, None, 1, 1, 1, 96)

    assert_lowers(plain, x, w, b, library=1, tolerance=1e-4)
    lowered = assert_lowers(with_depthwise, x, w, b, d, library=2, tolerance=1e-3)
    products = list(filter(is_product, library_calls(lowered)))
    assert len(products) == (
        1 if torch.backends.mkldnn.is_available() and memory_format is torch.contiguous_format else 0
    )


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="the product is oneDNN's")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 512, 9, 7), (1, 512, 1, 130)])
@pytest.mark.parametrize("quicker", [False, True])
def test_quicker_product_of_channels_last_data_is_chosen(shape, bias, quicker, monkeypatch):
    monkeypatch.setattr(lowering, "is_product_quicker", lambda *_, channels_last: channels_last and quicker)
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    w, b = torch.randn(200, 512, 1, 1), torch.randn(200)
    lowered = assert_lowers(lambda x, w, b: F.conv2d(x, w, b if bias else None), x, w, b, library=1, tolerance=1e-4)
    assert [is_product(call) for call in library_calls(lowered)] == [quicker]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="the product is oneDNN's")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("quicker", [False, True])
def test_quicker_product_of_several_images_is_chosen(bias, quicker, monkeypatch):
    monkeypatch.setattr(lowering, "is_product_quicker", lambda *_, channels_last: quicker and not channels_last)
    x, w, b = torch.randn(3, 512, 9, 7), torch.randn(200, 512, 1, 1), torch.randn(200)
    lowered = assert_lowers(lambda x, w, b: F.conv2d(x, w, b if bias else None), x, w, b, library=1, tolerance=1e-4)
    assert [is_product(call) for call in library_calls(lowered)] == [quicker]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="the product is oneDNN's")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [(9, 7), (8, 10)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("quicker", [False, True])
def test_quicker_product_of_the_positions_that_a_stride_leaves_is_chosen(
    size, bias, memory_format, quicker, monkeypatch
):
    monkeypatch.setattr(lowering, "is_product_quicker", lambda *_, channels_last: quicker and channels_last)
    x = torch.randn(2, 96, *size).to(memory_format=memory_format)
    w, b, d = torch.randn(600, 96, 1, 1), torch.randn(600), torch.randn(96, 1, 3, 3)

    def behind_depthwise(x, w, b, d):  # which has its result in NHWC
        return F.conv2d(F.conv2d(x, d, None, 1, 1, 1, 96).sigmoid(), w, b if bias else None, 2)

    lowered = assert_lowers(behind_depthwise, x, w, b, d, library=2, tolerance=1e-4)
    assert [is_product(call) for call in library_calls(lowered)] == [False, quicker]


@pytest.mark.parametrize("training", [False, True])
def test_training_keeps_images_in_the_order_of_sums_of_eager(training, monkeypatch):
    monkeypatch.setattr(lowering, "is_product_quicker", lambda *_, channels_last: True)
    x, w = torch.randn(3, 512, 9, 7), torch.randn(200, 512, 1, 1)
    graph = run_passes(trace(lambda x, w: F.conv2d(x, w), [x, w], keep=can_lower).graph, False)
    if training:
        graph.meta["part"] = "forward"
    (call,) = library_calls(lower(graph))
    assert is_product(call) is not training


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_one_tap_convolution_of_single_positions_is_a_product_of_matrices(memory_format, batch, bias):
    x, w, b = torch.randn(batch, 24, 6, 5).to(memory_format=memory_format), torch.randn(40, 24, 1, 1), torch.randn(40)

    def means(x, w, b):
        return F.conv2d(x.mean((2, 3), keepdim=True), w, b if bias else None)

    def scaled(x, w, b):
        return x.repeat(1, 2, 1, 1)[:, :40] * means(x, w, b).sigmoid()

    for function in (means, scaled):
        lowered = assert_lowers(function, x, w, b, library=1, tolerance=1e-5)
        assert [node.target for node in library_calls(lowered)] == [torch.ops.aten.mm.out]


@pytest.mark.parametrize("channels", [5, 8])
def test_a_transposed_one_of_single_positions_multiplies_by_the_weight_turned(channels):
    x, w, b = torch.randn(3, 8, 1, 1), torch.randn(8, channels, 1, 1), torch.randn(channels)
    assert_lowers(lambda x, w, b: F.conv_transpose2d(x, w, b), x, w, b, library=1, tolerance=1e-5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [False, True])
def test_large_patches_are_rows_of_a_product(memory_format, bias):
    x, w, b = torch.randn(2, 3, 66, 64).to(memory_format=memory_format), torch.randn(64, 3, 8, 8), torch.randn(64)
    lowered = assert_lowers(lambda x, w, b: F.conv2d(x, w, b if bias else None, 8), x, w, b, library=1, tolerance=1e-3)
    assert not input_strides(lowered)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 3])
def test_a_kernel_of_the_size_of_the_image_is_a_product(memory_format, bias, stride):
    x, w, b = torch.randn(2, 96, 7, 5).to(memory_format=memory_format), torch.randn(400, 96, 7, 5), torch.randn(400)

    def whole(x, w, b):
        return F.conv2d(x, w, b if bias else None, stride)

    lowered = assert_lowers(whole, x, w, b, library=1, tolerance=1e-3)
    assert [node.target for node in library_calls(lowered)] != [convolution]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (1, 4)])
def test_a_transposed_one_without_overlap_is_a_product(memory_format, bias, batch, kernel):
    x = torch.randn(batch, 32, 24, 18).to(memory_format=memory_format)
    w, b = torch.randn(32, 20, *kernel), torch.randn(20)

    def relu(x, w, b):
        return F.conv_transpose2d(x, w, b if bias else None, kernel).relu()

    lowered = assert_lowers(relu, x, w, b, library=1, tolerance=1e-4)
    assert [node.target for node in library_calls(lowered)] != [convolution]


@pytest.mark.parametrize("more", [{"padding": 1}, {"output_padding": 1}, {"dilation": 2}, {"groups": 2}, {"stride": 3}])
def test_other_transposed_ones_are_left_to_the_library(more):
    x, w = torch.randn(1, 32, 24, 18), torch.randn(32, 16, 2, 2)
    options = {"stride": 2, **more}
    lowered = assert_lowers(lambda x, w: F.conv_transpose2d(x, w, **options), x, w, library=1, tolerance=1e-4)
    assert [node.target for node in library_calls(lowered)] == [convolution]


def test_transposed_one_dimensional_and_double():
    x, w = torch.randn(2, 4, 9), torch.randn(6, 4, 3)
    assert_lowers(F.conv1d, x, w, library=1, tolerance=1e-4, strides=False)
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3)
    assert_lowers(F.conv_transpose2d, x, w, library=1, tolerance=1e-4)
    assert_lowers(lambda x, w: F.conv2d(x, w.mT), x.double(), torch.randn(3, 4, 3, 3).double(), library=1)
