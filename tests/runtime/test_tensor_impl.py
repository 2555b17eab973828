"""The calibrated TensorImpl offsets agree with torch's getters, and a failed calibration is said and survived."""

import random
import warnings

import pytest
import torch

from stator.base import counters, logs
from stator.runtime import tensor_impl


@pytest.fixture
def layout():
    found = tensor_impl.calibrate()
    assert found is not None, "calibration failed on this torch"
    return found


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4, 5, 6), (2, 1, 3, 1, 2, 2), (1,) * 8])
def test_sizes_and_strides_are_read(layout, shape):
    tensor = torch.empty(shape)
    read = tensor_impl.read_tensor(layout, tensor)
    assert (read["shape"], read["stride"]) == (tuple(tensor.shape), tensor.stride())


def test_data_pointer_of_a_view_is_storage_plus_offset(layout):
    view = torch.arange(24, dtype=torch.int16).reshape(4, 6)[1:, 2:]
    read = tensor_impl.read_tensor(layout, view)
    assert read["data"] + read["storage_offset"] * read["itemsize"] == view.data_ptr()


@pytest.mark.parametrize("dtype", tensor_impl._all_dtypes(), ids=str)
def test_itemsize_is_known_for_every_dtype(layout, dtype):
    assert tensor_impl.read_tensor(layout, torch.empty(2, dtype=dtype))["itemsize"] == dtype.itemsize


def test_requires_grad_of_leaf_result_and_detached(layout):
    leaf = torch.empty(3, requires_grad=True)
    tensors = [leaf, leaf * 2, leaf.detach(), torch.empty(3), torch.nn.Parameter(torch.empty(2), requires_grad=False)]
    read = [tensor_impl.read_tensor(layout, tensor)["requires_grad"] for tensor in tensors]
    assert read == [True, True, False, False, False]


def test_requires_grad_of_a_view_whose_base_was_changed_is_not_claimed_false(layout):
    base = torch.zeros(3)
    view = base[:2]
    base.mul_(torch.ones(3, requires_grad=True))
    assert view.requires_grad
    assert tensor_impl.read_tensor(layout, view)["requires_grad"] is not False


def test_calibration_works_inside_user_modes(layout):
    class Tracking(torch.overrides.TorchFunctionMode):
        calls: list[str] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Tracking.calls.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Tracking(), torch.inference_mode(), torch.device("meta"):
        again = tensor_impl.calibrate.__wrapped__()
    assert again == layout
    made = [name for name in Tracking.calls if name.startswith(("empty", "as_strided", "frombuffer"))]
    assert made == [], Tracking.calls


def test_an_ambiguous_match_gives_none_and_one_warning(monkeypatch):
    monkeypatch.setattr(tensor_impl, "_find_sizes", lambda: tensor_impl._the_one("sizes", range(4), lambda at: True))
    logs.forget_warnings()
    before = counters.counts["tensor_impl.uncalibrated"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tensor_impl.calibrate.__wrapped__() is None
        assert tensor_impl.calibrate.__wrapped__() is None
    assert len(caught) == 1 and "sizes matches at offsets [0, 1, 2, 3]" in str(caught[0].message)
    assert counters.counts["tensor_impl.uncalibrated"] == before + 2


def test_what_memory_held_before_makes_no_difference(layout):
    """Some words of torch's objects are never written: they hold earlier contents of the heap."""
    kept = []
    for seed in range(100):
        draw = random.Random(seed)
        kept += [torch.empty(draw.randrange(50), requires_grad=True) * 2 for _ in range(20)]
        kept += [bytearray(b"\x77" * draw.randrange(100, 300)) for _ in range(20)]
        draw.shuffle(kept)
        del kept[100:]
        assert tensor_impl.calibrate.__wrapped__() == layout


def test_nothing_is_read_behind_an_object(layout):
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version not in ((2, 11), (2, 13)):
        pytest.skip("the sizes of this torch's objects are not known")
    impl_bytes, meta_bytes = (184, 200) if version == (2, 11) else (176, 184)
    assert tensor_impl._impl_bytes() == impl_bytes == layout.keyset + 8
    assert meta_bytes >= tensor_impl.META_BYTES
