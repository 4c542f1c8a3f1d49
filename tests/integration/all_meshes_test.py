"""Examples whose only argument is the mesh print the losses of one process on meshes of all axes.

10_all_axes runs a dense GPT in float32 and experts in float64; 21_your_own_plan runs its own model.
"""
import re

import support

# Parity in tests/parallel/composition_test.cc compares sets of axes; these are programs that parse a mesh.
DENSE = ["dp=3", "ep=1,dp=2,pp=1", "tp=2,cp=2,pp=2", "pp=2,dp=-1,fsdp=2,tp=2"]
EXPERTS = ["dp=2,ep=2", "ep=2,cp=2,tp=2", "pp=2,ep=2,fsdp=2"]
OWN = ["dp=3", "pp=3", "pp=2,tp=2,fsdp=2"]


def ranks_of(mesh):
    if "-1" in mesh:
        return 8
    ranks = 1
    for size in re.findall(r"[0-9]+", mesh):
        ranks *= int(size)
    return ranks


def losses(name, mesh, *words):
    command = [support.lockstep(), "run", "-n", str(ranks_of(mesh)), support.example(name), mesh, *words]
    code, output, _ = support.run(command, 120)
    support.expect(code == 0, f"{' '.join(command)}: exit code {code}", output)
    found = [float(loss) for loss in re.findall(r"step [0-9] loss ([0-9.]+)", output)]
    support.expect(len(found) == 5, f"{' '.join(command)}: five losses", output)
    return found


def compare(name, meshes, tolerance, *words):
    one = losses(name, "dp=1", *words)
    support.expect(one[4] < one[0], f"{name}: the loss falls", str(one))
    worst = 0
    for mesh in meshes:
        for expected, found in zip(one, losses(name, mesh, *words)):
            difference = abs(found - expected) / expected
            support.expect(difference <= tolerance, f"{name} {mesh} {words}: expected {expected}, found {found}")
            worst = max(worst, difference)
    print(f"{name} {' '.join(words)}: {len(meshes)} meshes, largest relative difference {worst:.1e}", flush=True)


compare("10_all_axes", DENSE, 2e-6)
compare("10_all_axes", EXPERTS, 1e-8, "moe")
compare("21_your_own_plan", OWN, 2e-6)
support.end_all()
