#!/usr/bin/env bash
# Package:   gepa 0.1.4 (2026-11-28)
# Input:     gepa.optimize with a training list of three examples and another validation list of five, a scripted
#            adapter and a scripted reflection model. Each new candidate is better on the training examples and worse
#            on the validation examples. The run is made without and with cache_evaluation=True.
# Expected:  the cache saves calls and changes no score: the seed candidate stays the best one.
# Observed:  with the cache, the validation scores of a new candidate for the first three examples are its training
#            scores. The adapter never receives these validation examples, and the best candidate is the last one
#            instead of the seed. The mean validation score reported for it is 0.64; the adapter gives it 0.1.
# Source:    gepa/core/state.py, EvaluationCache, whose key is the candidate and the example's id. The ids of a list
#            are its indexes (gepa/core/data_loader.py), and the training minibatches
#            (gepa/proposer/reflective_mutation/reflective_mutation.py) and the validation set
#            (gepa/core/engine.py, _evaluate_programs_on_valset) share the cache.
# Matters:   a candidate that only fits the training examples wins the validation, without a warning. If the lists
#            differ, leave the cache off, or give a DataLoader whose ids differ between the two sets.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet gepa==0.1.4
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import sys
from itertools import count

import gepa

TRAIN = [{"set": "train", "n": n} for n in range(3)]
VALIDATION = [{"set": "validation", "n": n} for n in range(5)]


def score(candidate, example):
    version = int(candidate["prompt"].split()[-1])
    if example["set"] == "train":
        return version / 2
    return 0.2 if version == 0 else 0.1


class Adapter:
    propose_new_texts = None

    def __init__(self):
        self.validated = set()

    def evaluate(self, batch, candidate, capture_traces=False):
        self.validated |= {(candidate["prompt"], e["n"]) for e in batch if e["set"] == "validation"}
        scores = [score(candidate, example) for example in batch]
        traces = [{} for _ in batch] if capture_traces else None
        return gepa.EvaluationBatch(outputs=[None] * len(batch), scores=scores, trajectories=traces)

    def make_reflective_dataset(self, candidate, batch, components):
        return {name: [{"Feedback": "none"}] for name in components}


class Quiet:
    def log(self, *args, **kwargs):
        pass


def observe(cache):
    adapter, number = Adapter(), count(1)
    result = gepa.optimize(
        seed_candidate={"prompt": "version 0"},
        trainset=TRAIN,
        valset=VALIDATION,
        adapter=adapter,
        reflection_lm=lambda prompt: f"```\nversion {next(number)}\n```",
        reflection_minibatch_size=3,
        max_metric_calls=20,
        cache_evaluation=cache,
        logger=Quiet(),
    )
    best = result.best_candidate
    reported = result.val_aggregate_scores[result.best_idx]
    true = sum(score(best, example) for example in VALIDATION) / len(VALIDATION)
    seen = sum((best["prompt"], example["n"]) in adapter.validated for example in VALIDATION)
    print(f"cache {cache}: best {best}, reported {reported:.2f}, true {true:.2f}, evaluated on {seen} of 5 examples")
    return best["prompt"], round(reported, 2), round(true, 2), seen


without, with_cache = observe(False), observe(True)
unchanged = without == ("version 0", 0.2, 0.2, 5) and with_cache == ("version 2", 0.64, 0.1, 2)
sys.exit(0 if unchanged else "changed: the best candidates differ from the description above")
PYTHON
