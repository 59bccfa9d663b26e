#!/usr/bin/env python3
"""Builds llm.c's train_gpt2cu from its sources in another folder, and times its steps in BF16 with random weights.

    lab/peers/llmc_gpu.py --llmc CHECKOUT --work DIR --descriptor d12 --sequences 32

The checkout is copied and stays as it is; a built train_gpt2cu in it (or --llmc FILE, the program itself) is taken as it
is. It is built with its Makefile, without NCCL and, unless --cudnn-frontend names that library's include folder, with its
own attention. Random tokens: the work of a step does not depend on them. Prints one JSON object.
"""

import argparse
import array
import json
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess

SHARD_MAGIC = 20240520
HEADER_INTEGERS = 256
VOCABULARY = 50257
WARM_UP = 5
NEVER = 1_000_000  # llm.c divides by how often it evaluates


def write_shard(path, count):
    generator = random.Random(3)
    tokens = array.array("H", (generator.randrange(VOCABULARY) for _ in range(count)))
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{HEADER_INTEGERS}i", SHARD_MAGIC, 1, count, *[0] * (HEADER_INTEGERS - 3)))
        file.write(tokens.tobytes())


def for_cuda_13(header):
    """CUDA 13 takes a place in memory where llm.c names the host by a number. Nothing else of it is changed."""
    text = header.read_text()
    old = "cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId"
    new = ("cudaMemAdviseSetPreferredLocation,\n#if CUDART_VERSION >= 13000\n"
           "        cudaMemLocation{cudaMemLocationTypeHost, 0}\n#else\n        cudaCpuDeviceId\n#endif\n        ")
    header.write_text(text.replace(old, new))


def program_of(given):
    """The program, built if it has to be."""
    if given.llmc.is_file():
        return given.llmc, "as given"
    if (given.llmc / "train_gpt2cu").is_file():
        return given.llmc / "train_gpt2cu", "as given"
    copy = given.work / "sources"
    if not (copy / "train_gpt2cu").is_file():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(given.llmc, copy, ignore=shutil.ignore_patterns(".git"))
        for_cuda_13(copy / "llmc/cuda_utils.cuh")
        command = ["make", "-C", copy, "train_gpt2cu", "NO_MULTI_GPU=1", f"GPU_COMPUTE_CAPABILITY={given.capability}"]
        if given.cudnn_frontend:
            command += ["USE_CUDNN=1", f"CUDNN_FRONTEND_PATH={given.cudnn_frontend}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"llm.c does not build:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return copy / "train_gpt2cu", "make " + ("with cuDNN" if given.cudnn_frontend else "without cuDNN")


def timed(program, given):
    tokens = given.sequences * given.tokens
    steps = WARM_UP + given.steps
    for name in ("train", "val"):
        write_shard(given.work / f"{name}.bin", (min(steps, 8) + 2) * tokens + 1)
    command = [program.resolve(), "-i", "train.bin", "-j", "val.bin", "-e", given.descriptor, "-b", given.sequences,
               "-t", given.tokens, "-x", steps, "-v", NEVER, "-m", 1, "-s", 0, "-r", given.recompute]
    done = subprocess.run([str(word) for word in command], cwd=given.work, capture_output=True, text=True)
    found = re.findall(r"\| ([0-9.]+) ms \|", done.stdout)
    if done.returncode != 0 or len(found) <= WARM_UP:
        raise SystemExit(f"train_gpt2cu ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    seconds = statistics.median(float(text) / 1e3 for text in found[WARM_UP:])
    return {"step_seconds": seconds, "tokens_per_second": tokens / seconds, "steps": len(found) - WARM_UP}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--llmc", required=True, type=pathlib.Path, help="a checkout, or the program")
    arguments.add_argument("--work", required=True, type=pathlib.Path, help="where it is built and run")
    arguments.add_argument("--descriptor", default="d12", help="d12 is 124M, d24 350M, d36 774M, d48 1558M")
    arguments.add_argument("--sequences", type=int, default=32)
    arguments.add_argument("--tokens", type=int, default=1024)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--recompute", type=int, default=0, help="llm.c's -r: 0 none, 1 GELU, 2 GELU and LayerNorm")
    arguments.add_argument("--capability", default="90", help="of the GPU, for the build")
    arguments.add_argument("--cudnn-frontend", help="its include folder: attention is then cuDNN's")
    arguments.add_argument("--only-prepare", action="store_true", help="write the shards, build and run nothing")
    given = arguments.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    revision = subprocess.run(["git", "-C", given.llmc if given.llmc.is_dir() else given.llmc.parent, "rev-parse",
                               "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"descriptor": given.descriptor, "sequences": given.sequences, "tokens": given.tokens,
              "recompute": given.recompute, "revision": revision}
    if given.only_prepare:
        write_shard(given.work / "train.bin", 1000)
    else:
        program, built = program_of(given)
        result.update(timed(program, given), built=built)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
