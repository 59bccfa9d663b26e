"""A training loop of nanoGPT's shape, before it is supervised."""

from __future__ import annotations

import argparse
import os
import time

from nano.model import Model, get_batch, load_into, save


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--max-iters", type=int, default=1000)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of a step, at least")
    parser.add_argument("--fault-site", default="")
    parser.add_argument("--fault-steps", type=int, nargs=2, default=[0, 0])
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    model = Model()
    model.fault = (args.fault_site, *args.fault_steps)
    if args.resume:
        load_into(model, max((f.path for f in os.scandir(args.out)), key=os.path.getmtime))
    model.is_fp8 = lambda site, gemm: True

    while model.step < args.max_iters:
        if model.step % args.checkpoint_every == 0:
            path = f"{args.out}/step-{model.step:06}.json"
            save(model, path)
        begun = time.monotonic()
        tokens = get_batch(model.step + 1)
        loss, kept = model.forward(tokens)
        norm = model.update(model.backward(tokens, kept), rate=0.1)
        if model.step % 100 == 0:
            print(f"iter {model.step}: loss {loss:.4f}, norm {norm:.3f}", flush=True)
        time.sleep(max(0.0, args.pace - (time.monotonic() - begun)))


if __name__ == "__main__":
    main()
