"""TRL's GRPOTrainer on the same model and data, without a hub."""

from __future__ import annotations

import os
import tempfile
import time

import lengths
import numpy as np
from contest import CEILING, OWN, Way, Work, absent, absent_row, compare, rows_of
from timing import clocked

from peers.generation import llama
from peers.threads import THREADS

NAME, PACKAGES = "trl GRPOTrainer", ("trl", "transformers", "torch", "datasets", "tokenizers")
WARM = 2  # steps before the first that is timed


def beside_trl(what: dict[str, str], shape, own: Way, work: Work, repeats: int) -> list[dict]:
    """Rows of our step and of its trainer, who take turns; with the faster number of threads."""
    if gone := absent(NAME, PACKAGES):
        return [*compare(what, [own], repeats, work), absent_row(what, gone)]
    ways, runs = {}, {}
    for threads in THREADS:
        programs = {CEILING: work.ceiling, (OWN, None): own.program}
        ways[threads] = Way(NAME, None, PACKAGES, threads=threads)
        runs[threads] = _in_turn(shape, programs, repeats, (NAME, threads))
    best = min(THREADS, key=lambda threads: np.median(runs[threads][NAME, threads]))
    there = {(OWN, None): own, (NAME, best): ways[best]}
    return rows_of(what, there, runs[best], {}, work, OWN)


def _in_turn(shape, programs: dict, repeats: int, key: tuple[str, int]) -> dict:
    """Seconds of each of its steps, and of each program, which runs after every step."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import TrainerCallback

    seconds = {name: [] for name in (key, *programs)}

    class InTurn(TrainerCallback):
        def on_step_begin(self, args, state, control, **others):
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **others):
            seconds[key].append(time.perf_counter() - self.start)
            for name, program in programs.items():
                seconds[name].append(clocked(program))

    torch.set_num_threads(key[1])
    with tempfile.TemporaryDirectory() as folder:
        _trainer(shape, repeats + WARM, folder, InTurn()).train()
    return {name: np.array(own[WARM:]) for name, own in seconds.items()}


def _trainer(shape, steps: int, folder: str, callback):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = shape.problems * shape.samples
    task = lengths.fixed(shape.tokens)
    prompts = task.held_out(shape.problems * steps, 0).prompt
    tokenizer = _tokenizer(task.vocabulary)
    return GRPOTrainer(
        model=llama(shape.size, eos=lengths.VOCABULARY - 1),
        reward_funcs=_reward,
        train_dataset=Dataset.from_list([{"prompt": task.text(p)} for p in np.asarray(prompts)]),
        processing_class=tokenizer,
        callbacks=[callback],
        args=GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=rows,
            num_generations=shape.samples,
            max_completion_length=shape.tokens,
            generation_kwargs={"min_new_tokens": shape.tokens},
            max_steps=steps,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )


def _tokenizer(vocabulary: tuple[str, ...]):
    """One word a token; the last one would end an episode, and may not."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=vocabulary[0],
        unk_token=vocabulary[0],
        eos_token=vocabulary[-1],
    )


def _reward(completion_ids: list[list[int]], **others) -> list[float]:
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]
