"""``lattice-tune lora train`` and ``lora eval``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_tune.cli.options import print_json, split_names
from lattice_tune.errors import ConfigError, InvalidInputError, shown
from lattice_tune.lora.config import LoraConfig, LoraTrainingConfig
from lattice_tune.training.early_stopping import EarlyStopping
from lattice_tune.training.optimizer import Optimizer, OptimizerConfig

if TYPE_CHECKING:
    from lattice_inference import LoraAdapter
    from lattice_tune.lora.loop import LoraStep
    from lattice_tune.lora.objective import LoraEvaluation
    from lattice_tune.lora.trainer import LoraResult, LoraTrainer

__all__ = ["run_eval", "run_train"]


def run_train(options: argparse.Namespace) -> int:
    """Train an adapter, write it, and say how it went."""
    from lattice_inference.lora.destination import check_new_directory
    from lattice_inference.lora.peft_files import CONFIG_FILE
    from lattice_inference.quantize.destination import check_destination
    from lattice_tune.lora.loss_curve import loss_curve

    target = Path(options.output)
    check_new_directory(target, CONFIG_FILE, overwrite=options.overwrite)
    if options.gguf is not None:  # before hours of training
        check_destination(Path(options.gguf), [], overwrite=options.overwrite)
    config, training = _adapter_config(options), _training_config(options)
    with _open(options, config, training) as trainer:
        if options.adapter is not None:
            _load(trainer, options.adapter)
        if options.dry_run:
            return _show_plan(trainer, options)
        with _StepLine() as line:
            result = trainer.train(
                options.data, validation=options.validation, folder=options.folder, progress=line.show
            )
        trainer.save(target, gguf=options.gguf, overwrite=options.overwrite)
        if options.json:
            print_json(_told(result, trainer, target))
            return 0
        print(f"adapter      {target}: {len(trainer.sites)} linears, rank {trainer.config.rank}")
        if options.gguf is not None:
            print(f"             {options.gguf}")
        last = result.metrics.history[-1]
        print(f"training     {len(result.losses):,} updates, last round's loss {last.train_loss:.4f}")
        if last.val_loss is not None:
            quality = "" if last.val_accuracy is None else f", quality {last.val_accuracy:.4f}"
            print(f"validation   loss {last.val_loss:.4f}{quality}")
        if result.metrics.restored_epoch is not None:
            print(f"best round   {result.metrics.restored_epoch + 1}, whose matrices were kept")
        if result.truncated:
            print(f"cut          {result.truncated:,} examples to {options.max_tokens:,} tokens")
        print(loss_curve(result.losses.tolist()))
    return 0


def run_eval(options: argparse.Namespace) -> int:
    """Measure an adapter."""
    from lattice_inference import load_adapter_file

    training = LoraTrainingConfig(
        batch_size=options.batch_size,
        max_tokens=options.max_tokens,
        micro_batch_tokens=options.micro_batch_tokens,
    )
    with _open(options, _config_of(load_adapter_file(options.adapter)), training) as trainer:
        _load(trainer, options.adapter)
        found = trainer.evaluate(options.data)
    if options.json:
        print_json(found.to_dict() | ({"perplexity": found.perplexity} if options.objective == "tokens" else {}))
    else:
        _print_evaluation(found, options.objective)
    return 0


def _open(options: argparse.Namespace, config: LoraConfig, training: LoraTrainingConfig) -> LoraTrainer:
    from lattice_tune.lora.trainer import LoraTrainer

    return LoraTrainer(
        options.model,
        config,
        training,
        objective=options.objective,
        prompt=options.prompt,
        pooling=options.pooling,
        keep=options.keep,
        activations=options.activations,
        threads=options.threads,
    )


def _load(trainer: LoraTrainer, path: str) -> None:
    """Give a trainer the adapter in a file, with the head beside it."""
    from lattice_inference import load_adapter_file
    from lattice_inference.lora import in_row_order
    from lattice_tune.lora.head import load_head

    adapter = load_adapter_file(path)
    if adapter.row_order != "half":
        adapter = in_row_order(adapter, trainer.path, "half")
    trainer.load(adapter, load_head(path) if trainer.objective == "classification" else None)


def _adapter_config(options: argparse.Namespace) -> LoraConfig:
    targets = split_names(options.targets, "--targets")
    named = targets[0] if targets in (["all"], ["attention"]) else tuple(targets)
    layers = None
    if options.layers is not None:
        first, dash, last = options.layers.partition("-")
        if not (first.isdecimal() and (not dash or last.isdecimal())):
            raise InvalidInputError(f"--layers is {shown(options.layers)}; write 4-11, or one number")
        layers = int(first), int(last or first)
    return LoraConfig(
        rank=options.rank,
        alpha=options.alpha,
        rank_stabilized=options.rank_stabilized,
        targets=named,
        layers=layers,
        dropout=options.dropout,
        seed=options.seed,
    )


def _training_config(options: argparse.Namespace) -> LoraTrainingConfig:
    try:
        rule = Optimizer(options.optimizer)
    except ValueError:
        known = ", ".join(one.value for one in Optimizer)
        raise ConfigError(f"--optimizer is {shown(options.optimizer)}; it must be one of {known}") from None
    monitor = "train_loss" if options.validation is None else "val_loss"
    stopping = None if options.patience is None else EarlyStopping(monitor=monitor, patience=options.patience)
    return LoraTrainingConfig(
        epochs=options.epochs,
        max_steps=options.max_steps,
        batch_size=options.batch_size,
        micro_batch_tokens=options.micro_batch_tokens,
        max_tokens=options.max_tokens,
        optimizer=OptimizerConfig(
            optimizer=rule, learning_rate=options.learning_rate, weight_decay=options.weight_decay
        ),
        schedule=options.schedule,
        warmup=options.warmup,
        b_rate_ratio=options.b_rate_ratio,
        gradient_clip=options.gradient_clip or None,
        noise=options.noise,
        seed=options.seed,
        early_stopping=stopping,
        eval_interval=options.eval_interval,
        checkpoint_interval=options.checkpoint_interval,
    )


def _config_of(adapter: LoraAdapter) -> LoraConfig:
    """Return the configuration that an adapter was trained with."""
    kinds = {(site.rank, site.scale) for site in adapter.sites.values()}
    if len(kinds) != 1 or not adapter.is_plain:
        raise InvalidInputError(f"{adapter.source}: its linears differ in rank or scale, or it has more than matrices")
    ((rank, scale),) = kinds
    return LoraConfig(rank=rank, alpha=scale * rank, targets=tuple(adapter.sites))


def _show_plan(trainer: LoraTrainer, options: argparse.Namespace) -> int:
    plan = trainer.plan(options.data) | {"linears": len(trainer.sites), "parameters": trainer.parameter_count}
    if options.json:
        print_json(plan)
    else:
        print(f"{plan['examples']:,} examples, {plan['tokens']:,} tokens, {plan['trained']:,} of them trained")
        print(f"{plan['updates']:,} updates of {plan['linears']} linears, {plan['parameters']:,} numbers")
    return 0


def _told(result: LoraResult, trainer: LoraTrainer, target: Path) -> dict[str, Any]:
    return {
        "output": str(target),
        "sha256": result.adapter.sha256,
        "linears": len(trainer.sites),
        "parameters": trainer.parameter_count,
        "updates": len(result.losses),
        "truncated": result.truncated,
        "peak_bytes": trainer.peak_bytes,
        "losses": result.losses.tolist(),
        "metrics": result.metrics.to_dict(),
    }


def _print_evaluation(found: LoraEvaluation, objective: str) -> None:
    print(f"loss         {found.loss:.4f} ({found.weight:,.0f} {'tokens' if objective == 'tokens' else 'examples'})")
    if objective == "tokens":
        print(f"perplexity   {found.perplexity:.4f}")
    if found.accuracy is not None:
        print(f"accuracy     {found.accuracy:.4f}")
    if found.correlation is not None:
        print(f"correlation  {found.correlation:.4f} (Spearman)")


class _StepLine:
    """Shows how far a training has come, on a terminal's standard error. A context manager."""

    def __init__(self) -> None:
        self._shows, self._began = sys.stderr is not None and sys.stderr.isatty(), time.monotonic()
        self._first: int | None = None

    def show(self, done: LoraStep) -> None:
        """Show an update."""
        if not self._shows:
            return
        self._first = done.step - 1 if self._first is None else self._first
        left = (time.monotonic() - self._began) / (done.step - self._first) * (done.steps - done.step)
        print(
            f"\r\033[Kupdate {done.step:,} of {done.steps:,}, loss {done.loss:.4f}, {done.weight / done.seconds:,.0f} a "
            f"second, {int(left // 60)}:{int(left % 60):02} left",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> _StepLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._first is not None:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
