"""One of several processes that train the toy together; writes its result."""

import json
import os
import sys
from pathlib import Path

from pytest_trace2evolve.training.run import train
from tests.training.toy import toy_plan

if __name__ == "__main__":
    base, folder = Path(sys.argv[1]), Path(sys.argv[2])
    done = train(toy_plan(base, folder / "kept", groups=4, steps=2, beta=0.1, keep_every=1))
    weights = [float(weight.sum()) for weight in done.model.parameters() if weight.requires_grad]
    result = {"writes": done.writes, "curve": done.curve, "weights": weights}
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(result))
