#!/usr/bin/env bash
# The archive of a release, in target/dist: one program for Linux on x86-64 with glibc 2.28 or later, the page in it, the manual
# page, completions. `make release` builds the page before.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.tools/bin:$HOME/.cargo/bin:$PATH"

TARGET=x86_64-unknown-linux-gnu
GLIBC=2.28
PROGRAM=target/$TARGET/release/vram-budget

[ -f dist/vram-budget.html ] || { echo "release: no dist/vram-budget.html: make dist" >&2; exit 1; }
scripts/tools.sh release
RUSTFLAGS='--cfg embed_page' cargo zigbuild --release --locked --bin vram-budget --target "$TARGET.$GLIBC"
scripts/check-release.sh "$PROGRAM" "$GLIBC"

version=$("$PROGRAM" --version | cut -d' ' -f2)
name=vram-budget-$version-x86_64-linux
into=target/dist/$name
rm -rf "$into"
mkdir -p "$into/completions"
cp "$PROGRAM" LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md "$into/"
"$PROGRAM" man > "$into/vram-budget.1"
for shell in bash elvish fish powershell zsh; do
  "$PROGRAM" completions "$shell" > "$into/completions/vram-budget.$shell"
done
# The same input makes the same archive.
tar -C target/dist --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -cf - "$name" |
  gzip -9n > "target/dist/$name.tar.gz"
(cd target/dist && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
