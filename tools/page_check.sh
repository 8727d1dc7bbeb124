#!/usr/bin/env bash
# Checks the page's modules with TypeScript: names that are not defined or not used, imports, arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

TSC=$PWD/.venv/node/node_modules/.bin/tsc
FRONTEND=${1:-src/regard/viewer/frontend}
if [ ! -x "$TSC" ] || ! command -v node >/dev/null; then
    echo "the page was not checked: TypeScript is not installed; tools/browser_setup.sh installs it" >&2
    [ -z "${CI:-}" ]
    exit
fi
"$TSC" --project "$FRONTEND"
