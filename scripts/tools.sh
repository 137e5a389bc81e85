#!/usr/bin/env bash
# Installs what `make` needs and does not find: `tools.sh rust`, `tools.sh web`, `tools.sh browser`,
# `tools.sh release`.
# Nothing that is already there in the right version is touched; what is added goes to .tools/ and node_modules/.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.tools/bin:$PWD/scripts/node_modules/.bin:$HOME/.cargo/bin:$PATH"

TRUNK=0.21.14
ZIGBUILD=0.24.1
ZIG=0.17.1

say() { echo "tools: $*" >&2; }
fail() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
as_root_with_apt() { [ "$(id -u)" = 0 ] && have apt-get; }

# apt_or_say COMMAND PACKAGE...: installs packages where that is possible, else says which.
apt_or_say() {
  local command=$1
  shift
  have "$command" && return
  as_root_with_apt || fail "\`$command\` is missing: install it (Debian: apt install $*)"
  say "installing $*"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
    >/dev/null || fail "\`apt-get install $*\` failed: install \`$command\` by hand"
}

rust() {
  have cargo || fail "\`cargo\` is missing: install Rust from https://rustup.rs"
  apt_or_say cc gcc libc6-dev
  local target=wasm32-unknown-unknown
  if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    have rustup || fail "the Rust target $target is missing, and there is no rustup to add it"
    rustup target add "$target"
  fi
}

web() {
  rust
  # The generator's version must be the library's, which Cargo.lock fixes.
  local bindgen
  bindgen=$(awk '/^name = "wasm-bindgen"$/ { getline; gsub(/[^0-9.]/, ""); print }' Cargo.lock)
  [ "$(wasm-bindgen --version 2>/dev/null || true)" = "wasm-bindgen $bindgen" ] || {
    say "installing wasm-bindgen-cli $bindgen (minutes)"
    # Not --locked: the lock file that the crate ships names versions that are not published everywhere.
    cargo install --quiet --root .tools wasm-bindgen-cli --version "$bindgen"
  }
  case "$(trunk --version 2>/dev/null || true)" in
    "trunk 0.21.14" | "trunk 0.22."*) ;;
    *)
      say "installing trunk $TRUNK (minutes)"
      cargo install --quiet --root .tools trunk --version "$TRUNK" --locked
      ;;
  esac
  node_modules scripts
}

# node_modules DIR: the packages that DIR/package-lock.json names.
node_modules() {
  apt_or_say node nodejs
  apt_or_say npm npm
  [ "$1/node_modules/.package-lock.json" -nt "$1/package-lock.json" ] && return
  say "installing the packages of $1/package-lock.json"
  npm ci --prefix "$1" --no-audit --no-fund --loglevel=error
  touch "$1/node_modules/.package-lock.json"
}

browser() {
  [ -n "${CHROMIUM:-}" ] || have chromium || have chromium-browser || have google-chrome ||
    apt_or_say chromium chromium fonts-dejavu-core
  node_modules tests/e2e
}

release() {
  rust
  apt_or_say objdump binutils
  have cargo-zigbuild || {
    say "installing cargo-zigbuild $ZIGBUILD (minutes)"
    cargo install --quiet --root .tools cargo-zigbuild --version "$ZIGBUILD" --locked
  }
  # The linker, with every glibc's symbols.
  have zig || {
    say "installing zig $ZIG"
    python3 -m venv .tools/zig || fail "\`python3 -m venv\` is missing: install it (Debian: apt install python3-venv), or zig"
    .tools/zig/bin/pip install --quiet "ziglang==$ZIG"
    mkdir -p .tools/bin
    printf '#!/bin/sh\nexec "%s/.tools/zig/bin/python" -m ziglang "$@"\n' "$PWD" > .tools/bin/zig
    chmod +x .tools/bin/zig
  }
}

for want in "$@"; do
  case $want in
    rust | web | browser | release) "$want" ;;
    *) fail "unknown tool set \`$want\`: rust, web, browser or release" ;;
  esac
done
