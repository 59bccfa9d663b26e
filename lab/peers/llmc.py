"""Prepares llm.c's train_gpt2 for a comparison: its own sources stay where they are.

From a checkout of llm.c this builds a copy of train_gpt2 in a scratch directory with our batch and number of
steps, and writes what it reads at start: a checkpoint with random weights of the wanted dimensions and a shard
of random tokens.
"""

import array
import pathlib
import random
import re
import statistics
import struct
import subprocess

CHECKPOINT_MAGIC = 20240326
SHARD_MAGIC = 20240520
HEADER_INTEGERS = 256


def header(*values):
    return struct.pack(f"<{HEADER_INTEGERS}i", *values, *[0] * (HEADER_INTEGERS - len(values)))


def write_checkpoint(path, layers, width, heads, vocabulary, tokens):
    generator = random.Random(1)
    noise = array.array("f", (generator.gauss(0, 0.02) for _ in range(1 << 16)))

    def weights(count):
        whole, rest = divmod(count, len(noise))
        return noise.tobytes() * whole + noise[:rest].tobytes()

    def constant(value, count):
        return array.array("f", [value]).tobytes() * count

    with open(path, "wb") as file:
        file.write(header(CHECKPOINT_MAGIC, 3, tokens, vocabulary, layers, heads, width, vocabulary))
        file.write(weights(vocabulary * width) + weights(tokens * width))
        ones, zeros = constant(1, layers * width), constant(0, layers * width)
        file.write(ones + zeros)
        file.write(weights(layers * 3 * width * width) + zeros * 3)
        file.write(weights(layers * width * width) + zeros)
        file.write(ones + zeros)
        file.write(weights(layers * 4 * width * width) + zeros * 4)
        file.write(weights(layers * 4 * width * width) + zeros)
        file.write(constant(1, width) + constant(0, width))


def write_shard(path, vocabulary, count):
    generator = random.Random(2)
    tokens = array.array("H", (generator.randrange(vocabulary) for _ in range(count)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(header(SHARD_MAGIC, 1, count) + tokens.tobytes())


def substituted(source, pattern, replacement):
    text, count = re.subn(pattern, replacement, source)
    if count != 1:
        raise SystemExit(f"train_gpt2.c has {count} places like {pattern!r}; expected one")
    return text


def prepare(checkout, scratch, shape, steps, compiler):
    """Returns the program, to be run in `scratch`. The batch, the number of steps and the batches of its
    validation are constants of its main function; what a step prints gets the CPU time so far. The flags are
    those of its Makefile, which takes OpenMP where it finds it."""
    checkout, scratch = pathlib.Path(checkout).resolve(), pathlib.Path(scratch)
    source = (checkout / "train_gpt2.c").read_text()
    source = substituted(source, r"int B = 4;", f"int B = {shape['sequences']};")
    source = substituted(source, r"int T = 64;", f"int T = {shape['tokens']};")
    source = substituted(source, r"step <= 40", f"step <= {steps}")
    source = substituted(source, r"val_num_batches = 5", "val_num_batches = 0")
    source = substituted(source, r"step > 0 && step % 20 == 0", "0")
    source = substituted(source, r"\(took %f ms\)\\n\", step, model.mean_loss, time_elapsed_s \* 1000\)",
                         r'(took %f ms, CPU %f s)\\n", step, model.mean_loss, time_elapsed_s * 1000, '
                         r"(double)clock() / CLOCKS_PER_SEC)")
    copy = scratch / "train_gpt2.c"
    copy.write_text(source)
    program = scratch / "train_gpt2"
    subprocess.run(
        [compiler, "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", f"-I{checkout}", str(copy), "-lm",
         "-o", str(program)],
        check=True)
    write_checkpoint(scratch / "gpt2_124M.bin", shape["layers"], shape["width"], shape["heads"],
                     shape["vocabulary"], shape["tokens"])
    batch = shape["sequences"] * shape["tokens"]
    for name in ("train", "val"):
        write_shard(scratch / f"dev/data/tinyshakespeare/tiny_shakespeare_{name}.bin",
                    shape["vocabulary"], (steps + 3) * batch + 1)
    return program


def step_times(program, environment):
    """Medians of a step's seconds and CPU seconds; the first step, which takes the memory, is left out."""
    output = subprocess.run([str(program)], cwd=program.parent, env=environment, check=True,
                            capture_output=True, text=True).stdout
    steps = re.findall(r"\(took ([0-9.]+) ms, CPU ([0-9.]+) s\)", output)
    seconds = [float(ms) / 1000 for ms, _ in steps]
    cpu = [float(so_far) for _, so_far in steps]
    cpu_steps = [after - before for before, after in zip(cpu, cpu[1:])]
    return statistics.median(seconds[1:]), statistics.median(cpu_steps)
