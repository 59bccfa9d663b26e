"""A small training job of PyTorch for tests: a model that learns to copy what came before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_device import DEVICE

from gnomon.plan import PrecisionPlan
from gnomon.torch import Fault, Job, adopt
from gnomon.torch.replay import StepOutcome

TOKENS, WIDTH, SEQUENCES, LENGTH = 32, 48, 8, 16


class Block(nn.Module):
    """A residual layer with a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.down_proj(functional.silu(self.up_proj(x)))
        output: Tensor = x + self.dropout(hidden)
        return output


class Model(nn.Module):
    """Embedding, two blocks over the mean of the past, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.lm_head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.lm_head(x)
        return logits


def batch_of(step: int) -> Tensor:
    """Token ids [SEQUENCES, LENGTH + 1]; each follows from the one before by a fixed rule."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(TOKENS, (SEQUENCES, 1), generator=generator)
    columns = [tokens]
    for _ in range(LENGTH):
        jump = torch.randint(4, (SEQUENCES, 1), generator=generator)
        columns.append((columns[-1] * 5 + jump) % TOKENS)
    return torch.cat(columns, dim=1).to(DEVICE)


def sequence_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """The mean loss of each sequence in nats per token."""
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(tokens[:, :-1])
    flat = functional.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    return flat.view(tokens.shape[0], -1).mean(dim=1)


def make_parts(seed: int = 0) -> tuple[Model, torch.optim.AdamW, Any]:
    torch.manual_seed(seed)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    return model, optimizer, scheduler


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> Any:
    def train_step(tokens: Tensor) -> StepOutcome:
        optimizer.zero_grad()
        loss = sequence_losses(model, tokens).mean()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.detach(), norm

    return train_step


def make_evaluate(model: nn.Module) -> Any:
    heldout = torch.cat([batch_of(1_000_000 + i) for i in range(2)])

    def evaluate() -> Tensor:
        was_training = model.training
        model.eval()
        losses = sequence_losses(model, heldout)
        model.train(was_training)
        return losses

    return evaluate


def make_job(plan: PrecisionPlan | None = None, faults: tuple[Fault, ...] = ()) -> Job:
    """A job whose linear layers run as `plan` says; all in FP8 without one."""
    model, optimizer, scheduler = make_parts()
    adopt(model, plan or PrecisionPlan.fp8())
    return Job(
        model=model,
        train_step=make_step(model, optimizer, scheduler),
        batch=batch_of,
        evaluate=make_evaluate(model),
        heldout_tokens=2 * SEQUENCES * LENGTH,
        state={"optimizer": optimizer, "scheduler": scheduler},
        faults=faults,
    )
