#!/usr/bin/env bash
# What the tests in a browser need: Debian's Chromium, and axe-core from npm.
# Quick where both are there. What it cannot install it names, and the tests then say the same:
# they are skipped on a desk, and fail where CI is set.
set -uo pipefail
cd "$(dirname "$0")/.."

AXE=4.14.0
MODULES=.venv/node

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Debian's package of this name, where there is apt and the right to use it.
install_package() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || return 1
    echo "installing $1 with apt-get"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" \
        >/dev/null 2>&1 && return
    as_root apt-get update -qq >/dev/null 2>&1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" \
        >/dev/null 2>&1
}

have_browser() {
    [ -x "${REGARD_CHROMIUM:-}" ] && return
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        command -v google-chrome >/dev/null
}

have_axe() {
    grep -qs "\"version\": *\"$AXE\"" "$MODULES/node_modules/axe-core/package.json"
}

missing() {
    echo "not installed: $1" >&2
    complete=false
}

complete=true
have_browser || install_package chromium
have_browser || missing "a browser (apt-get install chromium, or set REGARD_CHROMIUM to one)"
if ! have_axe; then
    command -v npm >/dev/null || install_package npm
    command -v npm >/dev/null &&
        npm install --silent --no-audit --no-fund --prefix "$MODULES" "axe-core@$AXE" >/dev/null
    have_axe || missing "axe-core (npm install --prefix $MODULES axe-core@$AXE)"
fi
$complete || echo "tests in a browser are skipped without these, and fail where CI is set" >&2
