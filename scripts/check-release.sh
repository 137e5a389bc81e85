#!/usr/bin/env bash
# check-release.sh PROGRAM GLIBC: whether the program runs where there is a glibc of that version and no driver. It needs no
# library but glibc's, and no symbol that is newer; it starts, has the page in it, and says which driver it misses.
set -euo pipefail
program=$(realpath "$1") glibc=$2
fail() { echo "check-release: $*" >&2; exit 1; }

newest=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2)
[ "$(printf '%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" = "$glibc" ] || fail "needs glibc $newest, which is newer than $glibc"
for library in $(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }'); do
  case $library in
    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libutil.so.1 | libgcc_s.so.1 | ld-linux-*) ;;
    *) fail "needs $library when it starts" ;;
  esac
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Away from dist/, with files that are no library: a machine that has the program alone, and no driver.
cp "$program" "$folder/vram-budget"
cd "$folder"
touch libnvidia-ml.so.1 libnvidia-ml.so
run() { env -i HOME="$folder" PATH="$folder" LD_LIBRARY_PATH="$folder" ./vram-budget "$@"; }
run estimate gpt2 --gpu-memory '24 GiB' --json > estimate.json || fail "estimate: exit code $?"
code=0
run probe > machine.json 2> said || code=$?
{ [ "$code" = 3 ] && grep -q 'libnvidia-ml.so.1' said; } || fail "probe: exit code $code: $(cat said)"
printf '{"format": "vram-budget-measurement", "version": 3, "readings": []}' > run.json
run open --no-open run.json > opened || fail "the page is not in the program"
grep -q '<html' run.html || fail "the page is not in the program"
echo "check-release: $program needs glibc $newest and no other library"
