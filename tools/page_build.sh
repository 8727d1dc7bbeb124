#!/usr/bin/env bash
# Bundles the pages: the modules below main.js and main.css, as page.js and page.css in a folder, and those of
# report.js and report.css under their own names.
# ASCII, so that a document without a charset around it reads the same bytes. Not minified: the file
# in the repository stays legible, its changes reviewable, and two branches mergeable.
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT=$PWD
OUT=$(realpath "${1:-src/regard/viewer/static}")
cd "${2:-src/regard/viewer/frontend}"
for ENTRY in main:page report:report; do
    "$ROOT/.venv/node/node_modules/.bin/esbuild" "${ENTRY%:*}.js" "${ENTRY%:*}.css" --bundle --format=iife \
        --charset=ascii --banner:js='"use strict";' --entry-names="${ENTRY#*:}" --outdir="$OUT" --log-level=warning
done
