"""Does bfloat16 work on this processor? Prints the environment variables it needs.

Some virtual machines advertise AMX and then kill the process that uses it. oneDNN can be told to
leave it alone, but only before torch starts: the question is asked once, in a second process.
"""

import os
import subprocess
import sys

VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
QUESTION = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def needed() -> dict[str, str]:
    """Environment variables without which bfloat16 would kill this process."""
    if VARIABLE in os.environ:
        return {}
    died = subprocess.run([sys.executable, "-c", QUESTION], capture_output=True).returncode < 0
    return {VARIABLE: WITHOUT_AMX} if died else {}


def restart_where_needed() -> None:
    """Start this script again with the variables it needs; call it before torch is used."""
    missing = needed()
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **missing})


if __name__ == "__main__":
    for name, value in needed().items():
        print(f"{name}={value}")
