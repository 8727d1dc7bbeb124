#!/usr/bin/env bash
# What the page's build, its check and its tests need: Debian's Chromium, and esbuild, TypeScript and
# axe-core from npm. `tools/browser_setup.sh packages` installs those from npm alone.
# Quick where all are there. What it cannot install it names, and the tests then say the same:
# they are skipped on a desk, and fail where CI is set.
set -uo pipefail
cd "$(dirname "$0")/.."

FRONTEND=src/regard/viewer/frontend
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

# npm writes node_modules/.package-lock.json last, so an install that broke off lacks it.
have_packages() {
    cmp -s "$FRONTEND/package-lock.json" "$MODULES/package-lock.json" &&
        [ -e "$MODULES/node_modules/.package-lock.json" ]
}

install_packages() {
    command -v npm >/dev/null || install_package npm
    command -v npm >/dev/null || return
    mkdir -p "$MODULES"
    rm -f "$MODULES/node_modules/.package-lock.json"
    cp "$FRONTEND/package.json" "$FRONTEND/package-lock.json" "$MODULES"
    (cd -P "$MODULES" && npm ci --silent --no-audit --no-fund --ignore-scripts >/dev/null)
}

missing() {
    echo "not installed: $1" >&2
    complete=false
}

complete=true
if [ "${1:-}" != packages ]; then
    have_browser || install_package chromium
    have_browser || missing "a browser (apt-get install chromium, or set REGARD_CHROMIUM to one)"
fi
have_packages || install_packages
have_packages || missing "esbuild, TypeScript and axe-core (npm ci, in a copy of $FRONTEND at $MODULES)"
$complete || echo "checks that need these are skipped, and fail where CI is set" >&2
