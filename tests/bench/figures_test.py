#!/usr/bin/env python3
"""Tests the computations and goals of bench/ without a build and without PyTorch."""

import argparse
import collections
import pathlib
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "bench"))

import collectives_rows  # noqa: E402
import contenders  # noqa: E402
import figures  # noqa: E402
import goals  # noqa: E402
import memory  # noqa: E402
import option_types  # noqa: E402
import step  # noqa: E402

MIB = 1 << 20


class Goals(unittest.TestCase):
    def test_say_what_was_met(self):
        least = goals.Goal("step", "", {}, "", least=1.8, aim=2.1)
        self.assertEqual(least.verdict(2), ">= 1.8: met; aim 2.1: missed")
        self.assertEqual(least.verdict(2.1), ">= 1.8: met; aim 2.1: met")
        self.assertEqual(least.verdict(1.7), ">= 1.8: missed; aim 2.1: missed")
        most = goals.Goal("step", "", {}, "", most=1.05, aim=1)
        self.assertEqual(most.verdict(1.02), "<= 1.05: met; aim 1: missed")

    def test_of_two_sides_miss_on_both(self):
        both = goals.Goal("memory", "", {}, "", least=0.95, most=1.05)
        self.assertEqual([both.met(found) for found in (0.94, 0.96, 1.05, 1.06)], [False, True, True, False])
        self.assertEqual(both.verdict(0.9), "0.95 to 1.05: missed")

    def test_say_where_they_come_from(self):
        for goal in goals.GOALS:
            self.assertTrue(goal.source, goal)
            self.assertTrue(goal.least is not None or goal.most is not None, goal)

    def test_speak_of_one_row_each(self):
        facts = {"op": "all_reduce", "bytes": 64 * MIB, "ranks": 2, "memory": "arena", "outsider": False}
        self.assertEqual(goals.goal_of("collectives", "gloo / ours", facts).least, 4.5)
        self.assertEqual(goals.goal_of("collectives", "gloo / ours", {**facts, "memory": "ordinary"}).least, 1.5)
        self.assertEqual(goals.goal_of("collectives", "gloo / ours", {**facts, "bytes": 1024}).least, 100)
        self.assertEqual(goals.goal_of("collectives", "gloo / ours", {**facts, "ranks": 8}).least, 4)
        self.assertIsNone(goals.goal_of("collectives", "gloo / ours", {**facts, "ranks": 3}))
        self.assertIsNone(goals.goal_of("collectives", "mean / p50", {**facts, "ranks": 4}))
        self.assertEqual(goals.goal_of("collectives", "mean / p50", {**facts, "ranks": 4, "outsider": True}).most, 20)
        # For node-shared memory, the time itself is judged, because no byte moves.
        shared = {**facts, "op": "all_gather", "memory": "node-shared"}
        self.assertIsNone(goals.goal_of("collectives", "gloo / ours", shared))
        self.assertIsNotNone(goals.goal_of("collectives", "us", shared))

    def test_of_steps_are_of_the_usual_mlp_and_two_ranks(self):
        facts = {"model": "mlp", "ranks": 2, "usual_size": True, "malloc": "glibc"}
        figure = "pytorch zero1 / ours optimizer"
        self.assertIsNotNone(goals.goal_of("step", figure, facts))
        for other in ({"model": "gpt"}, {"ranks": 4}, {"usual_size": False}):
            self.assertIsNone(goals.goal_of("step", figure, {**facts, **other}))

    def test_that_are_missed_are_listed(self):
        judgements = goals.Judgements()
        self.assertEqual(judgements.judge("memory", "nothing", {}, "a", 1), "")
        judgements.judge("memory", "counters", {}, "b", 1)
        judgements.judge("memory", "counters", {}, "c", 0.9)
        self.assertEqual(len(judgements.found), 2)
        self.assertEqual([text.split(":")[0] for text in judgements.missed()], ["c"])
        self.assertIn("missed", judgements.table()[-1])


class Figures(unittest.TestCase):
    def test_quotients_are_taken_round_by_round(self):
        found = figures.quotients([2, 6, 9], [1, 2, 4])
        self.assertEqual((found.min, found.p50, found.max), (2, 2.25, 3))
        with self.assertRaises(ValueError):
            figures.quotients([2], [])

    def test_few_calls_have_no_99th_percentile(self):
        self.assertIsNone(figures.summary_of([1.0] * 199).p99)
        self.assertAlmostEqual(figures.summary_of(range(200)).p99, 197.01)

    def test_times_and_bytes_are_written_in_three_digits(self):
        self.assertEqual(
            [figures.as_time(t) for t in (1.5, 0.0123, 4.5e-6, 6e-8)], ["1.50 s", "12.3 ms", "4.50 us", "60.0 ns"]
        )
        self.assertEqual([figures.as_bytes(n) for n in (999, 64 * MIB, 1238036480)], ["999 B", "64 MiB", "1.15 GiB"])


class Options(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual(option_types.byte_counts("1KiB,64MiB,4096"), [1024, 64 * MIB, 4096])
        self.assertEqual(option_types.model_size("4096x12"), (4096, 12))
        for parsed, texts in (
            (option_types.byte_counts, ("0", "1KiB,-4", "64XB", "")),
            (option_types.model_size, ("12", "0x3", "ax2")),
            (option_types.number(1, 9), ("0", "10", "x", "-1")),
            (option_types.words("ab"), ("c", "a,,b")),
        ):
            for text in texts:
                with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                    parsed(text)


Options_ = collections.namedtuple("Options_", "op sizes ranks peers outsider")


class Rows(unittest.TestCase):
    def test_usual_rows_hold_what_lies_between_the_caches(self):
        rows = collectives_rows.usual_rows()
        sizes = [row.bytes for row in rows if (row.op, row.ranks) == ("all_reduce", 2)]
        self.assertEqual(sizes, sorted(sizes))
        self.assertTrue({1 << 10, 2 << 10, 1 << 20, 25 * MIB, 32 * MIB, 64 * MIB, 256 * MIB} <= set(sizes))

    def test_chosen_rows_are_every_choice(self):
        rows = collectives_rows.rows_of(Options_(["all_reduce", "barrier"], [5, 4096], [3, 2], [], True))
        self.assertEqual([row.ranks for row in rows], [2] * 6 + [3] * 6)
        self.assertEqual({row.bytes for row in rows if row.ranks == 3}, {0, 12, 4092})
        self.assertEqual({row.outsider for row in rows}, {False, True})

    def test_what_does_not_fit_is_refused(self):
        with self.assertRaisesRegex(contenders.Failed, "are free"):
            collectives_rows.rows_of(Options_(None, [1 << 50], None, [], False))

    def test_bus_shares_are_those_of_nccl_tests(self):
        shares = {op: collectives_rows.Row(op, 4, 4).bus_share() for op in collectives_rows.OPS}
        self.assertEqual(shares["all_reduce"], 1.5)
        self.assertEqual((shares["broadcast"], shares["reduce"]), (1, 1))
        self.assertEqual({shares[op] for op in ("all_gather", "reduce_scatter", "all_to_all")}, {0.75})


class FakeSteps:
    def __init__(self, name, losses):
        self.name, self.losses = name, losses


class Steps(unittest.TestCase):
    def test_modes_have_counterparts(self):
        self.assertEqual(step.counterparts_of(["ddp", "full", "full-node-shared"]), ["ddp", "fsdp2"])

    def test_losses_must_be_equal(self):
        ours = FakeSteps(step.Name("ours", "ddp"), [2.0, 1.9])
        alone = FakeSteps(step.Name("pytorch", "none"), [2.0, 1.5])
        step.check_losses([ours, alone, FakeSteps(step.Name("pytorch", "ddp"), [2.0, 1.90001])])
        for losses in ([2.0, 1.8], [float("nan"), 1.9]):
            with self.assertRaisesRegex(contenders.Failed, "equal losses"):
                step.check_losses([ours, FakeSteps(step.Name("pytorch", "ddp"), losses)])

    def test_every_peer_stands_there_with_both_mallocs(self):
        names = step.names_of(argparse.Namespace(mode=["ddp"], against=None, malloc=["glibc", "lockstep"]))
        self.assertEqual([name.title() for name in names], ["ours ddp", "PyTorch ddp", "PyTorch ddp, malloc as ours"])
        ratios = step.ratios_of([FakeSteps(name, []) for name in names])
        self.assertEqual([theirs.name.malloc for theirs, _ in ratios], ["glibc", "lockstep"])

    def test_malloc_is_what_our_ranks_say(self):
        with tempfile.TemporaryDirectory() as folder:
            rank = pathlib.Path(folder) / "rank"
            script = '#!/bin/sh\n[ "$*" = malloc ] && echo \'{"MALLOC_TRIM_THRESHOLD_": "7"}\'\n'
            rank.write_text(script, encoding="utf-8")
            rank.chmod(0o700)
            self.assertEqual(contenders.our_malloc(rank), {"MALLOC_TRIM_THRESHOLD_": "7"})


class ControlGroups(unittest.TestCase):
    def test_are_below_this_processes_own(self):
        first = memory.MemoryControl.read("9:name=systemd:/\n4:cpu,memory:/user/a\n0::/\n")
        self.assertEqual((str(first.folder), first.unified), ("/sys/fs/cgroup/memory/user/a", False))
        second = memory.MemoryControl.read("0::/user.slice/b\n")
        self.assertEqual((str(second.folder), second.unified), ("/sys/fs/cgroup/user.slice/b", True))
        self.assertIsNone(memory.MemoryControl.read("9:name=systemd:/\n"))
        self.assertIsNone(memory.MemoryControl.read(""))


if __name__ == "__main__":
    unittest.main()
