#!/bin/sh
# Environments of their own for JoeyNMT and Eole, which benchmarks/translate_training.py runs beside regard.
# torch comes first and alone, in the version of constraints.txt, so that no rival chooses another.
# The rivals come without their requirements: those pin old versions, or bring servers and CUDA.
set -e
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}

environment() {
    folder=.venv-$1
    ready=$folder/.ready
    list=benchmarks/translate_rivals/requirements-$1.txt
    if [ -e "$ready" ] && [ "$ready" -nt "$list" ] && [ "$ready" -nt constraints.txt ]; then
        return
    fi
    test -x "$folder/bin/python" || "$PYTHON" -m venv "$folder"
    pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
    $pip -c constraints.txt torch==2.13.0
    $pip --no-deps "$2"
    $pip --no-deps -r "$list"
    touch "$ready"
}

environment joeynmt joeynmt==2.3.0
environment eole eole==0.6.4
