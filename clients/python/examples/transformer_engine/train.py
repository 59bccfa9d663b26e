"""TransformerEngine under a live plan: its debug tool asks LivePlan for each GEMM.

It needs a GPU with FP8 and was not run. What the tests run is the debug tool, TransformerEngine's
code that decides about a GEMM, and LivePlan (clients/python/tests/test_transformer_engine.py).
"""

import argparse
import os

import nvdlfw_inspect.api as debug_api
import torch
import transformer_engine
import transformer_engine.pytorch as te
from torch import nn
from torch.nn import functional
from transformer_engine.common.recipe import DelayedScaling

import gnomon
from gnomon.transformer_engine import CONFIG, LivePlan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_steps", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    live = LivePlan(autocast=gnomon.PrecisionPlan.fp8("delayed"))
    live.register()
    features = os.path.join(os.path.dirname(transformer_engine.__file__), "debug", "features")
    debug_api.initialize(config_file=CONFIG, feature_dirs=[features])
    model = nn.Sequential(
        nn.Embedding(512, 512),
        te.LayerNormMLP(512, 2048, name="layers.0.mlp"),
        te.LayerNormMLP(512, 2048, name="layers.1.mlp"),
        te.Linear(512, 512, bias=False, name="lm_head"),
    ).cuda()
    live.follow(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = gnomon.init(
        project="examples",
        name="transformer-engine",
        sites=live.sites,
        plan=live.autocast,
        framework="pytorch",
        total_steps=args.max_steps,
        capabilities=live.capabilities,
        on_plan=live.set_plan,
    )
    while run.newest_step < args.max_steps:
        with run.step() as s:
            starts = s.step * 16 + torch.arange(16, device="cuda")[:, None]
            steps = torch.arange(33, device="cuda") * (1 + starts % 3)
            tokens = (starts * 7 + steps) % 512
            s.batch(tokens)
            with (
                torch.autocast("cuda", torch.bfloat16),
                te.autocast(enabled=True, recipe=DelayedScaling()),
            ):
                logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            s.log(loss=loss, grad_norm=norm, tokens=tokens.numel())
        debug_api.step()
    run.finish()


if __name__ == "__main__":
    main()
