"""One rank of a supervised run of test_torch_ranks.py: trains until the plan is BF16 at one site.

    python torch_rank_run.py RANK RANKS STORE_FILE URL FOLDER REJECTING_RANK

Prints for each step whether the site ran in FP8, and what ended the loop.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch_job import batch_of, make_parts, make_step

import gnomon
from gnomon.plan import PrecisionPlan
from gnomon.torch import adopt, plan_sites, set_plan

SITE = "layers.1.down_proj"
STEPS_MAX = 2000


def main() -> None:
    rank, ranks, store, url, folder, rejecting = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks)
    )
    model, optimizer, scheduler = make_parts()
    sites = adopt(model, PrecisionPlan.fp8())
    train_step = make_step(nn.parallel.DistributedDataParallel(model), optimizer, scheduler)

    def take(plan: PrecisionPlan) -> None:
        if plan.version > 0 and rank == rejecting:
            raise gnomon.Rejected("not on this rank")
        set_plan(model, plan)

    run = gnomon.init(
        project="test",
        name="ranks",
        url=url,
        sites=sites,
        plan=PrecisionPlan.fp8(),
        directory=folder,
        on_plan=take,
        capabilities=gnomon.Capabilities(rollback="none"),
    )
    in_fp8 = []
    end = "no plan came"
    try:
        for _ in range(STEPS_MAX):
            with run.step() as s:
                in_fp8.append(plan_sites(model)[SITE].choice.any_fp8)
                batch = batch_of(s.step)[int(rank) :: int(ranks)]
                s.batch(batch)
                loss, norm = train_step(batch)
                s.log(loss=loss, grad_norm=norm)
            if not in_fp8[-1]:
                end = "the plan came"
                break
            time.sleep(0.02)
    except gnomon.RanksDisagree as error:
        print(json.dumps(str(error)), flush=True)
        os._exit(3)  # a launcher then ends the others, which wait for this rank
    run.finish()
    print(json.dumps({"in_fp8": in_fp8, "end": end, "id": run.id}), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads abort some processes that end in order


if __name__ == "__main__":
    main()
