"""A `transformers.Trainer` whose linear layers run in FP8, supervised by GnomonCallback."""

import argparse
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import gnomon
from gnomon.torch import adopt, plan_sites, set_plan
from gnomon.transformers import GnomonCallback

PLAN = gnomon.PrecisionPlan.fp8()


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """4096 sequences that count up from different numbers."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = (index * 7 + torch.arange(32) * (1 + index % 3)) % 128
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    adopt(model, PLAN)
    run = gnomon.init(
        project="examples",
        name="transformers",
        sites=list(plan_sites(model)),
        plan=PLAN,
        framework="pytorch",
        checkpoint_format="transformers",
        checkpoint_every=20,
        total_steps=args.max_steps,
        capabilities=gnomon.Capabilities(plan="gemm", when="live", rollback="restart"),
        on_plan=lambda plan: set_plan(model, plan),
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.output_dir, max_steps=args.max_steps, save_steps=20, report_to=[]
        ),
        train_dataset=Rows(),
        callbacks=[GnomonCallback(run)],
    )
    resume = run.resume_from
    trainer.train(resume_from_checkpoint=resume.checkpoint if resume is not None else None)


if __name__ == "__main__":
    main()
