"""A Lightning Trainer whose linear layers run in FP8, supervised by GnomonCallback."""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

import gnomon
from gnomon.lightning import GnomonCallback
from gnomon.torch import adopt, plan_sites, set_plan

PLAN = gnomon.PrecisionPlan.fp8()


class NextToken(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 64)
        self.up_proj, self.down_proj = nn.Linear(64, 128), nn.Linear(128, 64)
        self.lm_head = nn.Linear(64, 64, bias=False)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        x = self.embedding(batch[:, :-1])
        logits = self.lm_head(x + self.down_proj(functional.silu(self.up_proj(x))))
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    module = NextToken()
    adopt(module, PLAN)
    run = gnomon.init(
        project="examples",
        name="lightning",
        sites=list(plan_sites(module)),
        plan=PLAN,
        framework="pytorch",
        checkpoint_format="lightning",
        checkpoint_every=20,
        total_steps=args.max_steps,
        capabilities=gnomon.Capabilities(plan="gemm", when="live", rollback="restart"),
        on_plan=lambda plan: set_plan(module, plan),
    )
    starts = torch.arange(4096)[:, None] * 7
    tokens = (starts + torch.arange(33) * (1 + starts % 3)) % 64
    trainer = Trainer(
        default_root_dir=args.output_dir,
        max_steps=args.max_steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[GnomonCallback(run), ModelCheckpoint(every_n_train_steps=20, save_top_k=-1)],
    )
    resume = run.resume_from
    trainer.fit(
        module,
        DataLoader(tokens, batch_size=16),
        ckpt_path=resume.checkpoint if resume is not None else None,
    )


if __name__ == "__main__":
    main()
