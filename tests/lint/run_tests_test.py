"""tools/run_tests.py counts cases, keeps skips apart, and accepts a second try only for timing-dependent cases."""
import contextlib
import importlib.util
import io
import pathlib
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("run_tests", ROOT / "tools/run_tests.py")
run_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_tests)

MARKS = {"Soon.*": "within 50 ms"}
SKIPPED = '<skipped message="x_test.cc:7&#x0A;no GPU here"/>'
FAILED = '<failure message="Expected equality"/>'


def results(**cases):
    """Returns GoogleTest's XML of cases named Suite_Case, each with the content of its element."""
    lines = []
    for name, inside in cases.items():
        suite, case = name.split("_")
        lines.append(f'<testcase classname="{suite}" name="{case}" status="run">{inside}</testcase>')
    return f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>"


def ctest(**entries):
    """Returns ctest's JUnit file of entries, each given as (status, content of its element)."""
    lines = (f'<testcase name="{name}" status="{status}">{inside}</testcase>'
             for name, (status, inside) in entries.items())
    return f"<testsuite>{''.join(lines)}</testsuite>"


def entries_of(junit, cases):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "ctest.xml").write_text(junit)
        for name, text in cases.items():
            if text is not None:
                (path / f"{name}.xml").write_text(text)
        files = {name: path / f"{name}.xml" for name in cases}
        return run_tests.read_entries("release", path / "ctest.xml", files)


def report_of(first, second=()):
    """Returns the exit code and the printed lines of a report on these entries."""
    report, again = run_tests.Report(MARKS), {entry.name: entry for entry in second}
    for entry in first:
        report.add(entry, again.get(entry.name))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = report.print()
    return types.SimpleNamespace(code=code, text=printed.getvalue(), last=printed.getvalue().splitlines()[-1])


def expect(report, code, *texts):
    assert report.code == code, f"expected exit code {code}, found {report.code}: {report.text}"
    for text in texts:
        assert text in report.text, f"no '{text}' in {report.text}"


# Cases are counted; skipped cases and skipped entries are kept apart from passes.
passing = entries_of(ctest(comm=("run", ""), lint=("run", ""), srun=(
    "notrun", '<skipped message="SKIP_RETURN_CODE=77"/><system-out>started&#x0A;skipped: no srun</system-out>')),
    {"comm": results(A_one="", A_two="", A_three=SKIPPED)})
expect(report_of(passing), 0, "skipped: release: comm: A.three: no GPU here", "skipped: release: srun: no srun")
assert report_of(passing).last.startswith("3 passed, 0 failed, 2 skipped (1 cases and 1 entries, for the 2 reasons")

# A case that fails and then passes on the second try fails the run, unless it is listed as
# timing-dependent: then it is only named.
passed = entries_of(ctest(comm=("run", "")), {"comm": results(A_one="", Soon_now="")})
race = entries_of(ctest(comm=("fail", "")), {"comm": results(A_one=FAILED, Soon_now="")})
late = entries_of(ctest(comm=("fail", "")), {"comm": results(A_one="", Soon_now=FAILED)})
both = entries_of(ctest(comm=("fail", "")), {"comm": results(A_one=FAILED, Soon_now=FAILED)})
expect(report_of(race, passed), 1, "failed: release: comm: A.one; it passed at a second try", "1 passed, 1 failed")
expect(report_of(late, passed), 0, "second try: release: comm: Soon.now (about time: within 50 ms)",
       "2 passed, 0 failed", "1 about time that passed only at the second try")
expect(report_of(late, late), 1, "failed: release: comm: Soon.now", "1 passed, 1 failed")
expect(report_of(late), 1)
expect(report_of(both, passed), 1, "0 passed, 2 failed")

# A program has failed if it ends without results, if it fails although all of its cases passed, or
# if it was not built. A program without any case has failed, too, even with exit code 0.
crashed = entries_of(ctest(comm=("fail", "")), {"comm": None})
expect(report_of(crashed, passed), 1, "failed: release: comm; it passed")
leaked = entries_of(ctest(comm=("fail", "")), {"comm": results(A_one="")})
expect(report_of(leaked), 1, "failed: release: comm\n", "1 passed, 1 failed")
absent = entries_of(ctest(comm=("notrun", '<skipped message="Unable to find executable"/>')), {"comm": None})
expect(report_of(absent), 1, "failed: release: comm")
for none in (results(), None):
    expect(report_of(entries_of(ctest(comm=("run", "")), {"comm": none})), 1, "comm (it ran no case)")

# The second try has only the entries that failed, also if ctest itself accepted them: here a program that should
# have left results of its cases.
with tempfile.TemporaryDirectory() as folder:
    run_tests.ROOT = pathlib.Path(folder)
    build = run_tests.ROOT / "build/release"
    build.mkdir(parents=True)
    (run_tests.ROOT / "tests").mkdir()
    (run_tests.ROOT / "tests/about_time.txt").write_text("")
    (build / "CTestTestfile.cmake").write_text(f"""
add_test(good "true")
add_test(a+b "true")
set_tests_properties(a+b PROPERTIES ENVIRONMENT "GTEST_OUTPUT=xml:{build}/results/a+b.xml")
""")
    with contextlib.redirect_stdout(io.StringIO()) as text:
        code = run_tests.test([("release", "")])
    assert code == 1 and "failed: release: a+b (it ran no case)" in text.getvalue(), text.getvalue()
    assert text.getvalue().count(": good .") == 1 and text.getvalue().count(": a+b .") == 2, text.getvalue()
    run_tests.ROOT = ROOT
    # A name that an entry sets twice is refused: only the last value would count.
    (build / "CTestTestfile.cmake").write_text("""
add_test(comm "true")
set_tests_properties(comm PROPERTIES ENVIRONMENT "GTEST_FILTER=*local*;A=1;GTEST_FILTER=-*mpi*")
""")
    try:
        run_tests.results_of(build)
        raise AssertionError("expected a refusal")
    except SystemExit as refused:
        assert str(refused) == "run_tests: comm sets GTEST_FILTER twice", refused

# From a program's output, the failed cases and a case that never ended are shown; without cases,
# the end of the output.
printed = """[ RUN      ] A.one
noise
[       OK ] A.one (1 ms)
[ RUN      ] A.two
expected 1, found 2
[  FAILED  ] A.two (1 ms)
[ RUN      ] A.three
it hangs"""
assert run_tests.lines_of_failures(printed) == printed.splitlines()[3:]
assert run_tests.lines_of_failures("no cases\nrefused") == ["no cases", "refused"]
assert run_tests.lines_of_failures("\n".join(map(str, range(500))), most=2) == ["498", "499"]

# Every line of the list is a pattern and a reason.
marks = run_tests.read_marks(ROOT / "tests/about_time.txt")
assert marks and all("." in pattern and reason for pattern, reason in marks.items())
print(f"run_tests: {len(marks)} patterns of cases that are about time")
