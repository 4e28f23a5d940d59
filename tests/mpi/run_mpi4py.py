# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Run one module of mpi4py's own test-suite and record the outcome of every test by name.

    mpiexec -n N python run_mpi4py.py TESTDIR OUTFILE MODULE

Each rank appends to OUTFILE.<rank>, unbuffered, so that a crash or a time-out loses nothing:

    start <module.Class.test>
    ok|fail|error|skip <module.Class.test>
    end

CUPY=1 takes arrays of the module cupy, too. SKIP_TESTS names a file of tests to leave out: a name first on each line, then the reason.

A `start` with no outcome is the test during which the run died.  ci/suite/mpi.sh merges the files.
"""

import os
import sys
import unittest

testdir, outfile, module = sys.argv[1:4]
sys.path.insert(0, testdir)
import main  # noqa: E402  (mpi4py's test/main.py)


class Result(unittest.TextTestResult):
    fd = None

    def emit(self, word, test=None):
        if Result.fd is None:
            from mpi4py import MPI

            name = f"{outfile}.{MPI.COMM_WORLD.Get_rank()}"
            Result.fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        line = word if test is None else f"{word} {test.id()}"
        os.write(Result.fd, (line.replace("\n", " ") + "\n").encode())

    def startTest(self, test):
        self.emit("start", test)
        super().startTest(test)

    def addSuccess(self, test):
        self.emit("ok", test)
        super().addSuccess(test)

    def addExpectedFailure(self, test, err):
        self.emit("ok", test)
        super().addExpectedFailure(test, err)

    def addUnexpectedSuccess(self, test):
        self.emit("fail", test)
        super().addUnexpectedSuccess(test)

    def addFailure(self, test, err):
        self.emit("fail", test)
        super().addFailure(test, err)

    def addError(self, test, err):  # also a whole class's set-up
        self.emit("error", test)
        super().addError(test, err)

    def addSkip(self, test, reason):
        self.emit("skip", test)
        super().addSkip(test, reason)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.emit("fail", test)
        super().addSubTest(test, subtest, err)

    def stopTestRun(self):
        self.emit("end")
        super().stopTestRun()


def without(suite, names):
    """The suite less the tests of these names."""
    kept = []
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.append(without(test, names))
        elif test.id() not in names:
            kept.append(test)
    return type(suite)(kept)


class Runner(unittest.TextTestRunner):
    resultclass = Result

    def run(self, test):
        if os.environ.get("SKIP_TESTS"):
            with open(os.environ["SKIP_TESTS"]) as lines:
                words = (line.split() for line in lines)
                test = without(test, {w[0] for w in words if w and not w[0].startswith("#")})
        return super().run(test)


main.TestProgram(
    module=None,
    argv=["main.py", "--no-builddir", *(["--cupy"] if os.environ.get("CUPY") else []), "-i", rf"^{module}\.py$"],
    testRunner=Runner,
)
