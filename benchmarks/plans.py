"""What plan search costs: bounds and a whole search over the plans of a large model, in CPU seconds.

    python benchmarks/plans.py [--write]

GPT-3's sizes on 4,096 A100. Cold: nothing is known of the model. Then again with costs of microbatches and
cuts remembered, which is what the budgets are about.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from record import table, write

from predictor.api import Predictor
from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt
from predictor.request import PredictionRequest
from predictor.search.bounds import bounds
from predictor.search.space import candidates, default_space
from predictor.types import Mode, Optimizer, Precision

REPEATS = 5
SEARCH_BUDGET_S, RATE_BUDGET = 2.0, 100_000


def main() -> int:
    """Measures, prints and, if asked, writes docs/benchmarks/plans.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/plans.md")
    options = parser.parse_args()
    predictor = Predictor.load()
    asked = PredictionRequest(
        megatron_gpt(MegatronConfig(96, 12288, 96), flash=True),
        "a100-sxm-80gb",
        batch=1536,
        mode=Mode.TRAIN,
        precision=Precision.BF16,
        optimizer=Optimizer.ADAM,
        cluster="dgx-a100-80gb:512",
    )
    start_s = time.process_time()
    result = predictor.search_plans(asked)
    cold_s = time.process_time() - start_s
    searches, boundings = [], []
    source = predictor.plan_source(asked)
    facts = source.facts()
    space = default_space(facts)
    for _ in range(REPEATS):
        start_s = time.process_time()
        predictor.search_plans(asked)
        searches.append(time.process_time() - start_s)
        start_s = time.process_time()
        bounds(candidates(space, facts), source.cuts)
        boundings.append(time.process_time() - start_s)
    count = result.considered
    rows = [
        ("plans considered", f"{count:,}", ""),
        ("of them too large for the memory", f"{result.too_large:,}", ""),
        ("of them priced exactly", f"{result.priced:,}", ""),
        ("search, costs remembered", f"{median(searches):.2f} CPU s", f"<= {SEARCH_BUDGET_S:g} s"),
        ("bounds of all plans", f"{count / median(boundings):,.0f} per CPU s", f">= {RATE_BUDGET:,} per s"),
        ("first search", f"{cold_s:.1f} CPU s", ""),
    ]
    for row in rows:
        print("  ".join(row))
    if options.write:
        body = "Medians of five. " + __doc__.partition("\n\n    python")[0] + "\n\n"
        body += table(("what", "measured", "budget"), rows)
        path = write(
            "plans", "Plan search at scale", "benchmarks/plans.py --write", predictor.bundle_id, body
        )
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
