"""A run: the state of a training, the files that it reads and writes, and the operations of the loop.

`hornbook.run.launch` creates it, and `hornbook.run.loop` drives it.
"""

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

import hornbook.checkpoint as checkpoint
from hornbook.config import Recipe, recipe_to_dict
from hornbook.engine.build_training import build_loader
from hornbook.engine.pipeline import Pipeline
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, StepResult, losses
from hornbook.engine.validation import Validation, validate
from hornbook.errors import DivergedError, HornbookError, NotFiniteError, StorageError
from hornbook.parallel.world import World
from hornbook.run.callbacks import Callback, Event, call
from hornbook.run.early_stopping import note_measurement, why_stopped
from hornbook.run.run_folder import RunFolder
from hornbook.run.saving import Saver, Snapshot
from hornbook.run.utilization import Utilization
from hornbook.samples.batches import Batch, HeldOut, Samples
from hornbook.text.tokenizer import Tokenizer
from hornbook.track.console import Console
from hornbook.track.metrics import IDLE, STORE_LOSS, MetricsLog
from hornbook.track.trackers.delivery import Trackers

MAX_FAILED_SAVES = 3


@dataclass(kw_only=True)
class TrainingRun:
    """One training run on one rank; only the first rank writes and prints."""

    recipe: Recipe
    num_steps: int
    folder: RunFolder
    device: torch.device
    world: World
    state: TrainState
    step_config: StepConfig
    samples: Samples
    tokenizer: Tokenizer | None
    console: Console
    utilization: Utilization | None = None
    """Converts tokens/s into FLOP/s and MFU; None for a custom model without a formula."""
    metrics: MetricsLog | None = None
    samples_log: MetricsLog | None = None
    trackers: Trackers | None = None
    """They get the rows of both logs automatically."""
    require_folder: Callable[[], None] = lambda: None
    """Raises StorageError if the run's folder is gone."""
    best_before: tuple[str, float | None, int | None] = ("validation", None, None)
    """``best_by``, ``best_value`` and ``best_step`` as they were before the last best step."""
    failed_saves: int = 0
    callbacks: Sequence[Callback] = ()
    why_stopped: str | None = None
    """Why early stopping has ended the run; None if it has not."""
    why_unrecorded: str | None = None  # what is wrong with the record of sessions, once that is said
    _counted_until: float = field(default=0.0, init=False)
    """Value of ``time.perf_counter`` up to which ``progress.seconds`` counts; pauses are added to it."""
    _logged: tuple[float, int] = field(default=(0.0, 0), init=False)
    """``seconds`` and ``tokens`` of the progress when it was last logged."""
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=20), init=False)
    """``seconds`` and ``tokens`` of the progress after each of the last steps, for the live display."""
    last_result: StepResult | None = field(default=None, init=False)
    """Result of this process's last step."""

    def __post_init__(self) -> None:
        self.saver = Saver(world=self.world, folder=self.folder.checkpoints, require_folder=self.require_folder)
        if self.state.progress.stale_measurements:  # a resumed run may already have stopped early
            self.why_stopped = why_stopped(self.state.progress, self.recipe.evaluation)

    @property
    def is_finished(self) -> bool:
        """Whether the last step is done, or early stopping has ended the run."""
        return self.state.progress.step >= self.num_steps or self.why_stopped is not None

    def is_due(self, *every_steps: int | None) -> bool:
        """Return whether an action that is due every ``every_steps`` steps and at the end is due now."""
        step = self.state.progress.step
        return any(self.is_finished or step % steps == 0 for steps in every_steps if steps is not None)

    @property
    def ends_with_checkpoint(self) -> bool:
        """Whether the current step is due to be saved; a skipped step never is, since its weights may be damaged."""
        return self.is_due(self.recipe.checkpoint.every_steps) and not self.state.progress.skipped_in_a_row

    def how_to_go_on(self) -> str:
        """Return a message that says what is saved and how to resume."""
        progress, folder = self.state.progress, str(self.folder.path)
        folder = folder if "/" in folder else f"./{folder}"  # a bare name could be a bundled recipe
        again = f"resume with `hornbook train {shlex.quote(folder)}`"
        if not progress.step:
            return "no step was finished, so nothing is saved; run the same command again"
        if not progress.skipped_in_a_row:
            return f"step {progress.step} of {self.num_steps} is saved in {self.folder.path}; {again}"
        return f"step {progress.step} was skipped, so it is not saved; {self.folder.what_is_saved()}; {again}"

    @contextmanager
    def batches(self) -> Iterator[Iterator[list[Batch]]]:
        """Yield the micro-batches of each step from the current one on, in host memory."""
        start, num_ids = self.state.progress.samples, self.state.model.num_ids
        with build_loader(self.recipe, self.samples, self.world, start_sample=start, vocab_size=num_ids) as loader:
            progress, self._counted_until = self.state.progress, time.perf_counter()
            self._logged = (progress.seconds, progress.tokens)
            self.recent.append(self._logged)
            yield loader

    def record(self, result: StepResult) -> None:
        """Add a step to the progress and, when due, to the log and the screen."""
        progress, now = self.state.progress, time.perf_counter()
        progress.seconds += now - self._counted_until
        self._counted_until = now
        self.recent.append((progress.seconds, progress.tokens))
        self.last_result = result
        if not result.skipped:
            for name, total in result.sums.items():
                progress.unlogged_sums[name] = progress.unlogged_sums.get(name, 0.0) + total
                progress.unlogged_counts[name] = progress.unlogged_counts.get(name, 0) + result.counts[name]
        else:
            self.console.warn(
                f"step {progress.step} skipped: loss {result.loss}, gradient norm {result.gradient_norm}"
                f"{'' if progress.loss_scale is None else f' at loss scale {result.loss_scale:g}'} "
                f"({progress.skipped_steps} skipped so far)"
            )
        if self.is_due(self.recipe.tracking.log_every_steps) or progress.step == 1:
            row = self._train_row(result)
            self.console.train(row, self.num_steps)
            if self.metrics is not None:
                self.metrics.append(row)
        if result.rewired:
            self.log_patterns(result.rewired)
        if self.callbacks:
            values = {"learning_rate": result.learning_rate, "gradient_norm": result.gradient_norm}
            self._call("step", result.loss, {**values, "skipped": result.skipped, **result.terms})

    def _call(self, kind: Literal["step", "validation"], loss: float | None, values: Mapping[str, Any]) -> None:
        event = Event(kind=kind, step=self.state.progress.step, loss=loss, values=values, model=self.state.model)
        with self.paused():
            call(self.callbacks, event, self.folder.what_is_saved)

    def log_patterns(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Log the state of the block-sparse patterns after the current step."""
        if self.metrics is not None:
            for row in rows:
                self.metrics.append({"kind": "topology", "step": self.state.progress.step, **row})

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block from the training time."""
        before = time.perf_counter()
        yield
        self._counted_until += time.perf_counter() - before

    def validate(self) -> None:
        """Measure the validation loss after the current step, and that of each store of a mixture, and log them."""
        progress = self.state.progress
        progress.validated_step = progress.step
        if self.samples.held_out is None:
            return
        with self.paused():
            result = self._score(self.samples.held_out, self.samples.held_out_bytes)
            stores = {
                f"{STORE_LOSS}{name}": self._score(part).loss for name, part in self.samples.held_out_stores.items()
            }
        if math.isfinite(result.loss):
            progress.finite_step = progress.step
        self.note_best("validation", result.loss)
        row = {"kind": "validation", "step": progress.step, **asdict(result), **result.terms, **stores}
        del row["terms"]
        self.console.validation(row)
        if self.metrics is not None:
            self.metrics.append(row)
        self._call("validation", result.loss, row)

    def _score(self, held_out: HeldOut, num_bytes: int | None = None) -> Validation:
        return validate(
            self.state.model,
            held_out,
            self.step_config.objective,
            forward=self.step_config.forward,
            ranks=self.world.data,
            micro_batch_size=self.recipe.training.micro_batch_size,
            max_windows=self.recipe.evaluation.max_windows,
            num_bytes=num_bytes,
        )

    def note_best(self, measure: str, value: float, *, higher: bool = False) -> None:
        """Record a measurement of ``best_by`` for early stopping, and the best of the saved steps.

        The current step counts as saved until its save fails.
        """
        progress, by = self.state.progress, self.recipe.checkpoint.best_by
        if measure != by:
            return
        note_measurement(progress, self.recipe.evaluation, measure, value, higher=higher)
        self.why_stopped = why_stopped(progress, self.recipe.evaluation)
        if not self.ends_with_checkpoint or not math.isfinite(value):
            return
        best = progress.best_value if progress.best_by == by else None
        if best is None or (value > best if higher else value < best):
            if progress.best_step != progress.step:
                self.best_before = (progress.best_by, progress.best_value, progress.best_step)
            progress.best_by, progress.best_value, progress.best_step = by, value, progress.step

    def sample(self) -> None:
        """Generate a sample text for the screen and the report.

        All ranks generate the same text, since each may hold only a part of the model; the first one records it.

        Raises:
            DivergedError: logits are not finite.
        """
        tokenizer, step = self.tokenizer, self.state.progress.step
        self.state.progress.sampled_step = step
        if tokenizer is None:
            return
        from hornbook.generate import generate

        with self.paused():
            try:
                ids = generate(
                    self.state.model,
                    [tokenizer.require_end_of_text()],
                    num_tokens=self.recipe.tracking.sample_tokens,
                    seed=self.recipe.training.seed,
                    vocab_size=tokenizer.vocab_size,
                    forward=self.step_config.forward,
                )
            except NotFiniteError:
                raise self._diverged("logits") from None
            text = tokenizer.decode(ids)
            if self.samples_log is not None:
                self.samples_log.append({"step": step, "prompt": "", "text": text})
            self.console.sample(step, text)

    def save(self, *, must_succeed: bool) -> None:
        """Save a checkpoint and prune old ones, or start doing so with ``checkpoint.background``.

        Nothing is saved while steps are skipped. A failed save leaves the older checkpoints intact and training
        continues, unless the save must succeed or several failed in a row. Either all ranks continue or none.

        Raises:
            DivergedError: the weights are not finite; nothing is saved.
            StorageError: the save failed and training cannot continue.
        """
        self.finish_saving()
        if self.state.progress.skipped_in_a_row:
            self.console.warn(f"checkpoint not saved: step {self.state.progress.step} was skipped")
            return
        with self.paused():
            self._refuse_bad_weights()
            for log in (self.metrics, self.samples_log):
                if log is not None:
                    log.sync()
            behind = self.recipe.checkpoint.background and not must_succeed
            self.saver.start(self._snapshot(), behind=behind)
        if not behind:
            self.finish_saving(must_succeed=must_succeed)

    def finish_saving(self, *, must_succeed: bool = False) -> None:
        """Wait for the pending save, if any, and handle its result as in ``save``. All ranks call this together."""
        with self.paused():
            saved = self.saver.finish()
        if saved is None:
            return
        if not saved.failed:
            self.failed_saves = 0
            self.console.checkpoint(saved.path)
            for warning in saved.warnings:
                self.console.warn(warning)
            return
        progress = self.state.progress
        if progress.best_step == saved.snapshot.contents.step:
            progress.best_by, progress.best_value, progress.best_step = saved.snapshot.best_before
        self.failed_saves += 1
        teller = saved.failed[-1]  # if any rank fails, so does the first
        error = saved.error or StorageError(f"rank {teller} could not save a checkpoint; see its error")
        if must_succeed or self.failed_saves >= MAX_FAILED_SAVES or not isinstance(error, StorageError):
            raise self.world.reported_by(teller, error)
        self.console.warn(f"checkpoint not saved, training continues: {error}")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Wait for a pending save at the end of the block; a second signal ends at once."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            saved = self.saver.finish()
            if saved is not None and saved.error is not None:
                self.console.warn(f"checkpoint not saved: {saved.error}")
            raise

    def _snapshot(self) -> Snapshot:
        keep, progress = self.recipe.checkpoint, self.state.progress
        held = {
            group: {name: shard for name, shard in shards.items() if not shard.is_copy and shard.values.numel()}
            for group, shards in self.state.home.tensors().items()
        }
        # The last update may have damaged the weights of this checkpoint. Unless their validation loss is finite, the
        # previous checkpoint stays, too. That one is good: a finite step followed it, since no skipped step is saved.
        return Snapshot(
            contents=checkpoint.Contents(
                step=progress.step,
                tensors={},
                documents={"state": self.state.to_json(), "recipe": recipe_to_dict(self.recipe)},
                files={"tokenizer.json": self.tokenizer.to_json().encode()} if self.tokenizer else {},
            ),
            held=held,
            best_before=self.best_before,
            keep_last=keep.keep_last if progress.finite_step == progress.step else max(keep.keep_last, 2),
            keep=(progress.best_step,) if keep.keep_best and progress.best_step is not None else (),
        )

    def prune(self) -> None:
        """Remove the checkpoints that need not be kept; warn if one cannot be removed."""
        snapshot = self._snapshot()
        try:
            checkpoint.prune(self.folder.checkpoints, keep_last=snapshot.keep_last, keep=snapshot.keep)
        except StorageError as error:
            self.console.warn(f"old checkpoints could not be removed: {error}")

    def set_aside(self, step: int) -> None:
        """Rename the checkpoint of ``step``, if any, since training diverged from its weights."""
        if self.world.is_first:
            try:
                path = checkpoint.set_aside(self.folder.checkpoints, step)
            except StorageError as error:
                self.console.warn(
                    f"training diverged from the checkpoint of step {step}, which stays in place: {error}"
                )
            else:
                if path is not None:
                    self.console.warn(f"training diverged from the checkpoint of step {step}: it is now {path}")
        self.world.barrier()

    def _refuse_bad_weights(self) -> None:
        home = self.state.home
        finite = [torch.isfinite(weight).all() for part in home.parts for weight in home.weights(part).values()]
        if self.world.any(not bool(torch.stack(finite).all())):
            raise self._diverged("weights")

    def _diverged(self, what: str) -> HornbookError:
        """Return the error, raised by all ranks, for weights or logits that are not finite."""
        line = f"{what} are not finite after step {self.state.progress.step}, so it is not saved; "
        line += f"{self.folder.what_is_saved()}: lower optimizer.learning_rate and start a new run"
        return self.world.reported_by(0, DivergedError(line))

    def _train_row(self, result: StepResult) -> dict[str, Any]:
        """Return the log row: loss and terms are means over all scored tokens since the last row.

        Skipped steps do not count unless all were skipped.
        """
        progress = self.state.progress
        sums, counts = progress.unlogged_sums or result.sums, progress.unlogged_counts or result.counts
        loss, terms = losses(sums, counts, result.weights)
        progress.unlogged_sums, progress.unlogged_counts = {}, {}
        seconds, tokens = progress.seconds - self._logged[0], progress.tokens - self._logged[1]
        self._logged = (progress.seconds, progress.tokens)
        return self.row(result, loss, terms, tokens / max(seconds, 1e-9))

    def row(
        self, result: StepResult, loss: float | None, terms: Mapping[str, float | None], speed: float
    ) -> dict[str, Any]:
        """Return a step's row, with the loss and terms of one or several steps and ``speed`` in tokens/s."""
        progress, executor, size = self.state.progress, self.step_config.executor, result.size
        idle = executor.idle if isinstance(executor, Pipeline) else ()
        return {
            "kind": "train",
            "step": progress.step,
            "loss": loss,
            "last_loss": result.loss,
            **({} if len(terms) == 1 else terms),
            **({"padding": size.padding / max(size.tokens + size.padding, 1)} if self.samples.shows_padding else {}),
            "learning_rate": result.learning_rate,
            "gradient_norm": result.gradient_norm,
            "tokens": progress.tokens,
            "samples": progress.samples,
            "tokens_per_second": speed,
            **(self.utilization.at(speed) if self.utilization else {}),
            "seconds": progress.seconds,
            "skipped_steps": progress.skipped_steps,
            **({} if progress.loss_scale is None else {"loss_scale": result.loss_scale}),
            **{f"{IDLE}{rank}": share for rank, share in enumerate(idle)},
            **self.state.home.traffic,
        }
