"""Training on batches padded to their longest row, with an evaluation and a smaller last batch: as eager, and compiled
no more after the first epoch's first sizes, second length and smaller batch."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from benchmarks.dynamic.program import programs
from benchmarks.models import import_torchvision
from tests.differential import Counts

import stator

_ROWS, _BATCH = 22, 4


@pytest.fixture(autouse=True)
def fresh():
    yield
    stator.reset()


def _rows() -> list[dict[str, Any]]:
    """Token ids of different lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 15, (_ROWS,), generator=generator).tolist()
    return [{"input_ids": torch.randint(2, 500, (length,), generator=generator)} for length in lengths]


def _padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest row."""
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def _assert_close(found: Any, expected: Any) -> None:
    """After several steps of Adam."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _trained_by_hand(model: Any, call: Any) -> list[float]:
    """Two epochs as Trainer runs them: clipped gradients, AdamW, a schedule, an evaluation after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 12)
    losses, rows = [], _rows()
    for _ in range(2):
        model.train()
        for at in range(0, _ROWS, _BATCH):
            loss = call(**_padded(rows[at : at + _BATCH])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses += [call(**_padded(rows[at : at + _BATCH])).loss.item() for at in range(0, _ROWS, _BATCH)]
    return losses


@pytest.mark.slow
def test_a_loop_like_trainers_compiles_each_mode_for_what_differs() -> None:
    eager, model = programs()["bert"].model("training"), programs()["bert"].model("training")
    expected, counts = _trained_by_hand(eager, eager), Counts()
    found = _trained_by_hand(model, stator.compile(model))
    _assert_close(found, expected)
    _assert_close(list(model.parameters()), list(eager.parameters()))
    assert counts.compilations <= 6  # in each mode: the first sizes, another length, the smaller last batch
    assert counts["left_to_eager"] == counts["dynamo.failed_frames"] == 0


@pytest.mark.slow
def test_trainer_compiles_each_mode_for_what_differs(tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    import_torchvision()
    os.environ["WANDB_DISABLED"] = "true"
    from transformers import Trainer, TrainingArguments

    def trained(model: Any) -> tuple[list[Any], Any]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=2,
            per_device_train_batch_size=_BATCH,
            per_device_eval_batch_size=_BATCH,
            eval_strategy="epoch",
            logging_strategy="steps",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            learning_rate=1e-3,
            seed=0,
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=_rows(), eval_dataset=_rows(), data_collator=_padded
        )
        trainer.train()
        log = trainer.state.log_history
        return [entry[key] for entry in log for key in ("loss", "eval_loss") if key in entry], trainer.evaluate()

    eager, model = programs()["bert"].model("training"), programs()["bert"].model("training")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = trained(eager)
        counts = Counts()
        found = trained(stator.compile(model))
    assert len(expected[0]) == 2 * -(-_ROWS // _BATCH) + 2
    _assert_close(found[0], expected[0])
    _assert_close(found[1]["eval_loss"], expected[1]["eval_loss"])
    _assert_close(list(model.parameters()), list(eager.parameters()))
    assert counts.compilations <= 6
