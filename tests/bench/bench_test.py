#!/usr/bin/env python3
"""Tests `./dev bench`: both systems run, the output for programs is complete, and wrong arguments are refused.

    bench_test.py BUILD_FOLDER

Tests that need a Python with torch are skipped without one (LOCKSTEP_PYTHON, else .venv/bin/python); if the others
pass, the exit status is 77.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "bench"))

import contenders  # noqa: E402
import peers_found  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else SOURCE / "build/release"
RUN = [sys.executable, "-B", SOURCE / "bench/run.py"]
MPIS = [name for name in ("openmpi", "mpich") if shutil.which(f"mpicc.{name}")]


def python_with_torch():
    try:
        return peers_found.find_python(None)
    except contenders.Failed:
        return None


class WarmPython:
    """Runs scripts in forks of one Python that has imported torch (tests/support/warm_python.py)."""

    def __init__(self, python):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-warm-")
        folder = pathlib.Path(self.folder.name)
        server = SOURCE / "tests/support/warm_python.py"
        self.program = folder / "python"
        self.program.write_text(
            f"#!/bin/sh\nexec '{python}' -IS '{server}' ask '{folder}/socket' \"$@\"\n", encoding="utf-8"
        )
        self.program.chmod(0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen()
            self.process = subprocess.Popen([python, server, "serve"], stdin=listener)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Case(unittest.TestCase):
    warm = None

    def run_bench(self, *words, **variables):
        """Runs the command to its end; the `warm` Python replaces PyTorch's."""
        command = [*map(str, RUN), *map(str, words), "--build", str(BUILD)]
        if Case.warm:
            command += ["--python", str(Case.warm.program)]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)

    def rows(self, *words, **variables):
        done = self.run_bench(*words, "--json", **variables)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def need_torch(self):
        if not Case.warm:
            self.skipTest("no Python with torch: set LOCKSTEP_PYTHON")

    def assert_refused(self, said, *words, **variables):
        done = self.run_bench(*words, **variables)
        self.assertNotEqual(done.returncode, 0, words)
        self.assertIn(said, done.stderr)


BRIEF = ("--rounds", 2, "--turn", 0.001)
EVERY_OP = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,reduce,gather,scatter,barrier"


class Family(Case):
    """Images with one bright row each, whose position encodes the digit."""

    def digits(self, folder):
        for name, count in (("train", 60), ("t10k", 20)):
            sizes = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
            images = b"".join(
                bytes(200 if byte // 56 == i % 10 else 0 for byte in range(28 * 28)) for i in range(count)
            )
            (folder / f"{name}-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03" + sizes + images)
            labels = bytes(i % 10 for i in range(count))
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01" + sizes[:4] + labels)

    def test_every_strategy_is_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            self.digits(pathlib.Path(folder))
            rows = {row["way"]: row for row in self.rows("family", "--mnist", folder, "--steps", 24)}
        self.assertEqual(len(rows), 14)
        self.assertEqual(rows["ddp"]["accuracy"], rows["ps-synchronous"]["accuracy"])
        self.assertIsNone(rows["dp"]["bytes"])
        whole = rows["ddp"]["bytes"]
        for way, most in (("bf16", 0.55), ("fp16", 0.55), ("powersgd", 0.8), ("local-sgd", 0.13), ("diloco", 0.09)):
            self.assertTrue(0 < rows[way]["bytes"] < most * whole, (way, rows[way], whole))

    def test_data_that_is_not_there_is_one_line(self):
        self.assert_refused("name the data of a task", "family")
        self.assert_refused("mnist by one: ", "family", "--mnist", "/nowhere", "--steps", 2)


class Collectives(Case):
    def test_every_operation_is_a_row_for_each_kind_of_memory(self):
        rows = self.rows(
            "collectives", "--peers", "none", "--ranks", 3, "--sizes", "1,4KiB", "--op", EVERY_OP, *BRIEF
        )
        seen = {(row["op"], row["memory"]) for row in rows}
        for row in rows:
            self.assertEqual((row["backend"], row["ranks"], row["bytes"] % 12), ("shm", 3, 0))
            self.assertTrue(0 < row["min_s"] <= row["p50_s"] <= row["max_s"], row)
            self.assertGreater(row["memory_bytes_per_s"], 1e8)
        self.assertEqual((len(seen), len(rows)), (8 * 2 + 1 + 1, 2 * (8 * 2 + 1) + 1))

    # Each rank of each system compares the result of every operation with the expected values.
    def test_gloo_is_checked_and_stands_beside_us(self):
        self.need_torch()
        rows = self.rows(
            "collectives", "--peers", "gloo,lockstep-gloo", "--ranks", 3, "--sizes", "4KiB", "--op", EVERY_OP, *BRIEF
        )
        for peer in ("gloo", "lockstep-gloo"):
            self.assertEqual({row["op"] for row in rows if row["backend"] == peer}, set(EVERY_OP.split(",")))

    def test_a_wrong_result_of_gloo_is_seen(self):
        self.need_torch()
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "import torch.distributed as dist, collectives\n"
            "dist.get_rank, dist.get_world_size, dist.all_reduce = lambda: 0, lambda: 2, lambda tensor: None\n"
            "collectives.Calls('all_reduce', 64).check()\n"
        )
        done = subprocess.run(
            [Case.warm.program, "-c", script, SOURCE / "bench/peers"], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("all_reduce of 64 bytes: rank 0 expected 4096.0 at element 0, found 0.0", done.stderr)

    def test_the_table_ends_with_ratios_and_goals(self):
        self.need_torch()
        done = self.run_bench(
            "collectives", "--peers", "gloo", "--op", "all_reduce,all_gather", "--sizes", "1KiB", *BRIEF
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in (
            "core to core",
            "all_reduce 1 KiB, 2 ranks",
            "no byte moves",
            "all_reduce 1 KiB, 2 ranks, arena: gloo / ours",
        ):
            self.assertIn(words, done.stdout)
        for memory in ("arena", "ordinary"):
            self.assertRegex(done.stdout, rf"all_gather 1 KiB, 2 ranks +{memory} +gloo +[0-9.]+ ")

    def test_every_mpi_is_checked_and_stands_beside_us(self):
        if not MPIS:
            self.skipTest("no MPI is installed under Debian's names")
        rows = self.rows(
            "collectives", "--peers", ",".join(MPIS), "--ranks", 3, "--sizes", "4KiB", "--op", EVERY_OP, *BRIEF
        )
        for peer in MPIS:
            self.assertEqual({row["op"] for row in rows if row["backend"] == peer}, set(EVERY_OP.split(",")))

    def test_our_backend_mpi_is_a_peer(self):
        if "openmpi" not in MPIS:
            self.skipTest("Open MPI is not installed under Debian's names")
        rows = self.rows("collectives", "--peers", "lockstep-mpi", "--sizes", "4KiB", *BRIEF)
        self.assertIn("lockstep-mpi", {row["backend"] for row in rows})

    def test_an_mpi_that_is_not_installed_is_one_line_and_the_rest_goes_on(self):
        done = self.run_bench(
            "collectives", "--peers", "mpi,mpich", "--json", "--sizes", "4KiB", "--outsider", *BRIEF, PATH="/nowhere"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = done.stderr.splitlines()[:2]
        self.assertTrue(first.startswith("left out: mpi: "), done.stderr)
        self.assertIn("apt-get install mpich", second)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["outsider"] for row in rows], [False, False, True, True])

    def test_a_bound_stands_beside_large_tensors(self):
        rows = self.rows("collectives", "--peers", "none", "--sizes", "32MiB", "--rounds", 2, "--turn", 0.01)
        for row in rows:
            self.assertGreater(row["bound_s"], 0)
            self.assertLess(row["bound_s"], row["max_s"])

    def test_mistakes_are_refused(self):
        for words, said in (
            (("--op", "allreduce"), "unknown 'allreduce'"),
            (("--sizes", "0"), "found '0'"),
            (("--sizes", "1KiB,-4"), "found '-4'"),
            (("--sizes", "64XB"), "found '64XB'"),
            (("--sizes", "4000000GiB"), "are free"),
            (("--ranks", "0"), "1 to 64"),
            (("--peers", "glo"), "unknown 'glo'"),
            (("--turn", "nan"), "0.0001 to 60 seconds"),
        ):
            self.assert_refused(said, "collectives", *words)
        done = subprocess.run(
            [*map(str, RUN), "collectives", "--peers", "gloo", "--python", "/nowhere/python"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertIn("/nowhere/python", done.stderr)

    def test_a_rank_refuses_a_line_that_is_none(self):
        for line in (
            "rubbish",
            "run all_reduce 8 arena 1 -2",
            "check all_reduce 8 nowhere",
            "run all_reduce 8 arena 1 1 1",
            "run all_reduce 8 arena 1 1",
        ):
            done = subprocess.run(
                [BUILD / "bench/lockstep-bench-rank", "collectives"],
                input=line + "\n",
                text=True,
                capture_output=True,
                check=False,
            )
            self.assertEqual(done.returncode, 1, line)
            self.assertRegex(done.stderr, "expected|unknown|not checked")

    def test_the_check_ends_with_what_became_of_the_goals(self):
        self.assert_refused("no goal speaks", "collectives", "--peers", "none", "--sizes", "4KiB", "--check", *BRIEF)


class Step(Case):
    brief = ("--ranks", 2, "--rounds", 1, "--steps", 1, "--optimizer", "fused")

    # The command compares the losses. A mode uses at least the memory of its level; units may add
    # to it.
    def check_contest(self, against, bytes_of):
        self.need_torch()
        ours = [mode for mode in bytes_of if mode not in ("zero1", "fsdp2")]
        rows = self.rows("step", "--mode", ",".join(ours), "--against", against, "--size", "256x4", *self.brief)
        self.assertEqual(len(rows), len(ours) + 2)
        for row in rows:
            self.assertEqual((row["model"], row["width"], row["depth"], row["optimizer"]), ("mlp", 256, 4, "fused"))
            self.assertTrue(0 < row["min_s"] <= row["p50_s"], row)
            self.assertGreaterEqual(row["bytes"], bytes_of[row["mode"]] * 4 * 257 * 256)
        self.assertEqual({row["malloc"] for row in rows if row["system"] == "pytorch"}, {"glibc", "lockstep"})

    def test_ddp(self):
        self.check_contest("ddp", {"ddp": 16})

    def test_zero1(self):
        self.check_contest("zero1", {"optimizer": 12, "gradients": 10, "zero1": 12})

    def test_fsdp2(self):
        self.check_contest("fsdp2", {"full": 8, "full-node-shared": 8, "fsdp2": 8})

    def test_tensor_parallel(self):
        self.check_contest("tensor", {"tensor": 8})

    def test_the_gpt_is_the_same_on_both_sides(self):
        self.need_torch()
        done = self.run_bench(
            "step", "--model", "gpt", "--mode", "none,ddp,tensor", "--size", "96x2", "--malloc", "glibc", *self.brief
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("PyTorch ddp / ours ddp", done.stdout)

    def test_tails_are_compared_like_with_like(self):
        self.need_torch()
        words = ("step", "--measure", "tail", "--tensors", 3, "--elements", 65536, *self.brief)
        rows = self.rows(*words)
        self.assertEqual(
            {(row["system"], row["kind"]) for row in rows},
            {(system, kind) for system in ("lockstep", "pytorch") for kind in ("sharded", "replicated")},
        )
        ours = next(row for row in rows if (row["system"], row["kind"]) == ("lockstep", "sharded"))
        # 4p + 24 bytes per parameter, with half of the parameters on each of two ranks.
        self.assertEqual(ours["bytes"], (4 * 2 + 24) * ours["parameters"] // 2)
        done = self.run_bench(*words, "--check")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("PyTorch sharded / ours sharded", done.stdout)

    def test_the_trigger_is_counted_and_timed(self):
        (row,) = self.rows("step", "--measure", "trigger", "--size", "96x2", *self.brief)
        # Two blocks of four linear layers and two norms each, forward and backward.
        self.assertGreater(row["uses"], 2 * (4 + 2) * 2)
        self.assertGreater(row["views"], 2 * 4)
        self.assertIn("share", row)

    def test_mistakes_are_refused(self):
        self.assert_refused("unknown 'full'", "step", "--against", "full")
        self.assert_refused("a multiple of gpt's 6 heads", "step", "--model", "gpt", "--mode", "ddp", "--size",
                            "100x2")
        self.assert_refused(
            "must divide", "step", "--measure", "tail", "--ranks", "3", "--tensors", "1", "--elements", "4"
        )


class Pipeline(Case):
    sizes = ("--width", 64, "--depth", 4, "--rows", 8, "--micro-batches", 4, "--rounds", 1, "--steps", 2)

    # The command compares the losses.
    def test_both_systems_train_the_same_stages(self):
        self.need_torch()
        rows = self.rows("pipeline", *self.sizes)
        self.assertEqual(
            {(row["system"], row["schedule"]) for row in rows},
            {("lockstep", one) for one in ("gpipe", "1f1b", "zb-h1", "zbv")}
            | {("pytorch", one) for one in ("gpipe", "1f1b", "zbv")},
        )
        for row in rows:
            self.assertTrue(0 < row["min_s"] <= row["p50_s"], row)
            self.assertEqual(len(row["real_of_simulated"]), 1 if row["system"] == "lockstep" else 0)

    def test_mistakes_are_refused(self):
        self.assert_refused("unknown 'zb'", "pipeline", "--schedule", "zb")


class Memory(Case):
    def test_counters_are_those_of_the_formulas(self):
        words = ("memory", "--measure", "counters", "--most-ranks", 2, "--counted", "256x4", "--steps", 2)
        rows = self.rows(*words)
        self.assertEqual(len({(row["mode"], row["dtype"], row["ranks"]) for row in rows}), 6 * 2 * 2)
        for row in rows:
            self.assertTrue(row["met"], row)

    # The processes are small here, so the test checks that there is a measurement, not its
    # accuracy.
    def test_pages_are_measured(self):
        rows = self.rows("memory", "--measure", "pss,node-shared", "--measured", "512x8", "--steps", 2)
        self.assertEqual([row["row"] for row in rows], ["pss", "pss kept"] * 3 + ["node-shared"])
        for row in rows:
            self.assertTrue(0.8 * row["expected_bytes"] < row["bytes"] < 3 * row["expected_bytes"], row)

    # A third of such a small model is less than LibTorch alone needs, so the limit takes effect and
    # the ranks are killed. The benchmark itself checks that ranks train at the usual size, which
    # takes a minute.
    def test_a_rank_above_its_limit_is_an_error(self):
        done = self.run_bench("memory", "--measure", "limited", "--limited", "256x4", "--steps", 1)
        if "control group" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 1)
        self.assertIn("limited: ranks ended with", done.stderr)

    def test_mistakes_are_refused(self):
        self.assert_refused("4096x12", "memory", "--measured", "12")
        self.assert_refused("unknown 'rss'", "memory", "--measure", "rss")


class Optimizer(Case):
    def test_every_contender_is_a_row(self):
        self.need_torch()
        rows = self.rows("optimizer", "--tensors", 2, "--elements", 5000, "--rounds", 2, "--steps", 1)
        self.assertEqual(
            {(row["system"], row["kind"]) for row in rows},
            {
                ("pytorch", "default"),
                ("pytorch", "fused"),
                ("lockstep", "float32"),
                ("lockstep", "memory"),
                ("lockstep", "bfloat16"),
                ("lockstep", "blocks"),
            },
        )
        for row in rows:
            self.assertEqual(row["parameters"], 10000)
            self.assertGreater(row["share_of_memory_bound"]["p50"], 0)



# `./dev bench before` with less work: run.py's main() after these assignments.
SMALL_BEFORE = """
import before, checkpoint, pipeline, run, step, step_shared
before.ROWS = before.ROWS[:1]
before.STEPS, pipeline.OUR_SCHEDULES = {"mlp": ("ddp",)}, ("1f1b",)
step.USUAL_SIZES = step_shared.USUAL_SIZES = {"mlp": (64, 2)}
pipeline.USUAL_SIZES.update(width=64, depth=2, rows=4, micro_batches=2)
checkpoint.USUAL = 4
run.main()
"""


class Before(Case):
    def test_each_part_compares_two_builds(self):
        told = [sys.executable, "-B", "-c", SMALL_BEFORE, "before", BUILD, "--build", BUILD, "--rounds", 2, "--json"]
        shown = subprocess.run(
            [str(word) for word in told],
            env={**os.environ, "PYTHONPATH": str(SOURCE / "bench")},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(shown.returncode, 0, shown.stderr)
        rows = [json.loads(line) for line in shown.stdout.splitlines()]
        self.assertEqual(
            [row["what"] for row in rows],
            [
                "all_reduce 64 B, 2 ranks, arena",
                "all_reduce 64 B, 2 ranks, ordinary",
                "step of mlp, ddp",
                "step by 1f1b",
                *(f"checkpoint of 4 MiB, {order}" for order in ("async", "save", "load", "trusted")),
                "start of 2 ranks",
                "restart of 2 ranks",
                "a request of the store",
            ],
        )
        for row in rows:
            self.assertEqual(len(row["before_s"]), len(row["now_s"]))
            self.assertGreater(row["p50"], 0)

    def test_a_folder_without_programs_is_refused(self):
        self.assert_refused("expected the build folder of another working tree, found no", "before", "/nowhere")


def main():
    with contextlib.ExitStack() as stack:
        if python := python_with_torch():
            Case.warm = WarmPython(python)
            stack.callback(Case.warm.close)
        ended = unittest.main(exit=False, verbosity=2).result
    if ended.wasSuccessful() and not Case.warm:
        print("skipped: no Python with torch: set LOCKSTEP_PYTHON", file=sys.stderr)
        sys.exit(77)
    sys.exit(not ended.wasSuccessful())


if __name__ == "__main__":
    main()
